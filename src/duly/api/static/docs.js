// The API's documentation, made from its OpenAPI description. Everything is written as text, nothing as markup.
"use strict";

const METHODS = ["get", "post", "patch", "delete"];

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function named(document_, reference) {
  return reference.split("/").slice(1).reduce((found, part) => found[part], document_);
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeOf))].join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items)}[]`;
  return schema.type || "any";
}

function table(heads, rows) {
  const made = make("table");
  const head = made.createTHead().insertRow();
  for (const text of heads) {
    const cell = make("th", text);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((text, index) => row.insertCell().append(index ? make("span", text) : make("code", text)));
  }
  return made;
}

function fields(description, schema) {
  const whole = schema.$ref ? named(description, schema.$ref) : schema;
  const required = new Set(whole.required || []);
  return Object.entries(whole.properties || {}).map(([name, rules]) => [
    name,
    typeOf(rules),
    required.has(name) ? "required" : rules.default === undefined ? "" : `default ${JSON.stringify(rules.default)}`,
    rules.description || "",
  ]);
}

function example(content) {
  if (content.example === undefined) return null;
  return make("pre", typeof content.example === "string" ? content.example : JSON.stringify(content.example, null, 2));
}

function call(description, path, method, operation) {
  const section = make("section");
  const title = make("h2");
  title.id = operation.operationId;
  title.append(make("span", method, "method"), make("code", path));
  section.append(title, make("p", operation.summary));
  if (operation.description) section.append(make("p", operation.description));
  if (operation.parameters && operation.parameters.length) {
    section.append(make("h3", "Parameters"), table(["name", "where", "type", "about"], operation.parameters.map((one) => [
      one.name, one.in + (one.required ? ", required" : ""), typeOf(one.schema), one.description || "",
    ])));
  }
  for (const [type, content] of Object.entries((operation.requestBody || {}).content || {})) {
    section.append(make("h3", `Body: ${type}`));
    const of = content.schema.items || content.schema;
    const rows = fields(description, of);
    if (rows.length) section.append(table(["field", "type", "", "about"], rows));
    const shown = example(content);
    if (shown) section.append(shown);
  }
  section.append(make("h3", "Answers"), table(["status", "about", "document"], Object.entries(operation.responses).map(
    ([status, answer]) => [status, answer.description, Object.values(answer.content || {}).map((one) => typeOf(one.schema)).join()],
  )));
  const good = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  for (const content of Object.values((good && good[1].content) || {})) {
    const shown = example(content);
    if (shown) section.append(shown);
  }
  return section;
}

async function show() {
  const main = document.getElementById("calls");
  const contents = document.getElementById("contents");
  const answer = await fetch("/api/v1/openapi.json");
  if (!answer.ok) throw new Error(`the description cannot be read: ${answer.status}`);
  const description = await answer.json();
  document.getElementById("about").textContent = description.info.description;
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const method of METHODS) {
      const operation = methods[method];
      if (!operation) continue;
      const item = make("li");
      const link = make("a");
      link.setAttribute("href", `#${operation.operationId}`);
      link.append(make("span", method, "method"), make("code", path), make("span", ` ${operation.summary}`, "quiet"));
      item.append(link);
      contents.append(item);
      main.append(call(description, path, method, operation));
    }
  }
}

show().catch((error) => document.getElementById("calls").append(make("p", error.message)));
