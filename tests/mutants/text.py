"""Mutants of output: foreign text, log lines, addresses."""

from __future__ import annotations

from mutants.mutant import Mutant

_HIDDEN = ("test_addresses.py",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "says-it-raw",
        "a foreign error message moves the cursor in the reader's terminal",
        "cli/output.py",
        "visible_lines(part) for part in text.split(_STYLE)",
        "part for part in text.split(_STYLE)",
        ("test_visible.py::test_only_our_own_styles_reach_a_terminal",),
    ),
    Mutant(
        "known-style",
        "a name can bring its own colours, because the marker of Duly's styles is known",
        "cli/output.py",
        '_STYLE = f"\\x1b{os.urandom(8).hex()}["',
        '_STYLE = "\\x1b["',
        ("test_visible.py::test_only_our_own_styles_reach_a_terminal",),
    ),
    Mutant(
        "forged-field",
        "a name with a line break in it looks like another field",
        "cli/output.py",
        "{_below(value, width + 2)}",
        "{value}",
        ("cli/test_text.py::test_every_command_prints_text_into_a_pipe",),
    ),
    Mutant(
        "raw-json",
        "--json prints characters that reverse the reading direction",
        "cli/output.py",
        "visible_json(json.dumps(document, indent=indent, ensure_ascii=False))",
        "json.dumps(document, indent=indent, ensure_ascii=False)",
        ("cli/test_text.py::test_every_command_prints_text_into_a_pipe",),
    ),
    Mutant(
        "forged-record",
        "a message with a line break in it looks like another record",
        "logs.py",
        'lines = [visible(self.formatMessage(record) + _shown_run(getattr(record, "duly_run", None)))]',
        'lines = [self.formatMessage(record) + _shown_run(getattr(record, "duly_run", None))]',
        ("test_visible.py::test_a_record_of_a_log_is_one_line_and_its_traceback_is_indented",),
    ),
    Mutant(
        "secrets-in-records",
        "a record of a handler shows the secrets of its run",
        "logs.py",
        "            _hide_secrets(record, run)\n",
        "            pass\n",
        ("test_logs.py::test_secrets_are_hidden_in_message_exception_and_fields",),
    ),
    Mutant(
        "forged-traceback",
        "an error with a line break in it looks like another record",
        "logs.py",
        "_INDENT + line for line",
        "line for line",
        ("test_visible.py::test_a_record_of_a_log_is_one_line_and_its_traceback_is_indented",),
    ),
    Mutant(
        "password-as-a-path",
        "a password with a slash in it is taken for a port and a database, and shown as such",
        "addresses.py",
        ' or "@" in path or odd:',
        " or odd:",
        _HIDDEN,
    ),
    Mutant(
        "shown-options",
        "?password=… is shown",
        "addresses.py",
        "for name in _SHOWN_OPTIONS if name in parts.options",
        "for name in parts.options",
        _HIDDEN,
    ),
    Mutant(
        "parsers-words",
        "the driver's message about an address it cannot read is repeated in the log",
        "store/pool.py",
        "    try:\n        check_postgres(url)\n    except ValueError:\n        # The driver",
        "    try:\n        pass\n    except ValueError:\n        # The driver",
        _HIDDEN,
    ),
    Mutant(
        "quoted-settings",
        "the error about one wrong setting shows all the others, passwords included",
        "config.py",
        "hide_input_in_errors=True",
        "hide_input_in_errors=False",
        _HIDDEN,
    ),
    Mutant(
        "password-in-the-path-of-an-api",
        "a password with a slash in it is taken for the path of an API, and shown with every error",
        "client/clients.py",
        'if "@" in url:',
        "if parts.username is not None or parts.password is not None:",
        _HIDDEN,
    ),
)
