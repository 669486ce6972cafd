"""What is shown: text from elsewhere, log lines, addresses."""

from __future__ import annotations

from mutants.mutant import Mutant

_HIDDEN = ("test_addresses.py",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "says-it-raw",
        "an error message of a stranger's moves the cursor of whoever looks at it",
        "cli/output.py",
        "visible_lines(part) for part in text.split(_STYLE)",
        "part for part in text.split(_STYLE)",
        ("test_visible.py::test_only_our_own_styles_reach_a_terminal",),
    ),
    Mutant(
        "known-style",
        "a name brings its own colours along: what marks ours is no secret",
        "cli/output.py",
        '_STYLE = f"\\x1b{os.urandom(8).hex()}["',
        '_STYLE = "\\x1b["',
        ("test_visible.py::test_only_our_own_styles_reach_a_terminal",),
    ),
    Mutant(
        "forged-field",
        "a name with a line break in it makes a field of its own",
        "cli/output.py",
        "{_below(value, width + 2)}",
        "{value}",
        ("cli/test_text.py::test_every_command_prints_text_into_a_pipe",),
    ),
    Mutant(
        "raw-json",
        "--json turns the reading direction around",
        "cli/output.py",
        "visible_json(json.dumps(document, indent=indent, ensure_ascii=False))",
        "json.dumps(document, indent=indent, ensure_ascii=False)",
        ("cli/test_text.py::test_every_command_prints_text_into_a_pipe",),
    ),
    Mutant(
        "forged-record",
        "a message with a line break in it makes a record of its own",
        "logs.py",
        "told = [visible(self.formatMessage(record))]",
        "told = [self.formatMessage(record)]",
        ("test_visible.py::test_a_record_of_a_log_is_one_line_and_its_traceback_is_indented",),
    ),
    Mutant(
        "forged-traceback",
        "an error with a line break in it makes a record of its own",
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
        "what the driver says of an address it cannot read is repeated in the log",
        "store/pool.py",
        "    try:\n        check_postgres(url)\n    except ValueError:\n        # The driver",
        "    try:\n        pass\n    except ValueError:\n        # The driver",
        _HIDDEN,
    ),
    Mutant(
        "quoted-settings",
        "a setting that is wrong is told with all the others, passwords included",
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
