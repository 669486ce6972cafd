"""Reading crontabs: each line is a job, a setting, a comment, or refused with its reason; none is lost silently."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.cli.crontab import Entry, Table, read_crontab
from duly.errors import InvalidInput
from duly.targets import check_target


def only(text: str, **options: bool | str) -> Entry:
    table = read_crontab(text, **options)  # type: ignore[arg-type]
    assert table.refused == ()
    assert len(table.entries) == 1
    return table.entries[0]


def reason(text: str, **options: bool | str) -> str:
    table = read_crontab(text, **options)  # type: ignore[arg-type]
    assert table.entries == ()
    assert len(table.refused) == 1
    return table.refused[0].reason


def notes(table: Table) -> str:
    return "\n".join(f"{line}: {note}" for line, note in table.notes)


def test_a_line_is_five_fields_and_everything_after_them_as_it_stands() -> None:
    entry = only('*/5\t 9-17 * JAN-mar mon-fri   /usr/bin/backup  --all "a  b" # kept\n')
    assert entry.schedule == "*/5 9-17 * JAN-mar mon-fri"
    assert entry.command == '/usr/bin/backup  --all "a  b" # kept'
    assert entry.argv == ["/bin/sh", "-c", entry.command]
    assert (entry.timezone, entry.user, entry.stdin, entry.line) == ("UTC", None, None, 1)


def test_a_sixth_star_belongs_to_the_command_because_cron_has_no_seconds() -> None:
    entry = only("* * * * * * x")
    assert (entry.schedule, entry.command) == ("* * * * *", "* x")


@pytest.mark.parametrize("name", ["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])
def test_named_schedules_are_carried_over(name: str) -> None:
    entry = only(f"  {name}   run it")
    assert (entry.schedule, entry.command) == (name, "run it")
    assert only(f"{name.upper()} run it").schedule == name


def test_comments_blank_lines_and_line_ends_of_other_systems_are_no_jobs() -> None:
    table = read_crontab("\ufeff# a\r\n\r\n   \t\n   # b\n0 1 * * * x\r\n")
    assert [entry.command for entry in table.entries] == ["x"]
    assert (table.refused, table.notes) == ((), ())
    assert table.entries[0].line == 5


def test_the_last_line_needs_no_line_end() -> None:
    assert [entry.command for entry in read_crontab("0 1 * * * x\n0 2 * * * y").entries] == ["x", "y"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("@reboot start-it", "@reboot"),
        ("@fortnightly x", "@fortnightly"),
        ("61 * * * * x", "minute"),
        ("* * 30 2 * x", "never"),
        ("5-1 * * * * x", "backwards"),
        ("*/0 * * * * x", "step"),
        ("* * * * funday x", "day of week"),
        ("0~30 * * * * x", "~"),
        ("* * * * *", "no command"),
        ("@daily", "no command"),
        ("@daily %only input", "no command"),
        ("hello there", "five fields"),
        ("* * *", "five fields"),
        ("* * * * * a\x00b", "control"),
        ("* * * * * a\x1bb", "control"),
    ],
)
def test_a_line_that_cannot_be_carried_over_says_why(line: str, words: str) -> None:
    assert words in reason(line)


def test_one_bad_line_does_not_spoil_the_others() -> None:
    table = read_crontab("0 1 * * * a\nnonsense\n0 2 * * * b\n@reboot c\n")
    assert [(entry.line, entry.command) for entry in table.entries] == [(1, "a"), (3, "b")]
    assert [refused.line for refused in table.refused] == [2, 4]


# Environment lines


def test_environment_lines_hold_for_the_lines_below_them() -> None:
    first, second = read_crontab("0 1 * * * a\nA=1\nB = two words  \n0 2 * * * b\n").entries
    assert first.env == {}
    assert second.env == {"A": "1", "B": "two words"}
    assert second.handler == {"type": "command", "argv": ["/bin/sh", "-c", "b"], "env": {"A": "1", "B": "two words"}}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('A="b c"', "b c"),
        ("A='b c '", "b c "),
        ('"A"=b', "b"),
        ("A=$HOME/bin", "$HOME/bin"),
        ("A=", ""),
        ('A=""', ""),
        ("A=b=c", "b=c"),
        ("A='", "'"),
        ("A='b\"", "'b\""),
        ("A=b # c", "b # c"),
        ("\t A\t=\tb", "b"),
    ],
)
def test_values_lose_their_outer_quotes_and_nothing_is_expanded(line: str, value: str) -> None:
    assert only(f"{line}\n@daily x").env == {"A": value}


def test_an_assignment_within_a_command_is_part_of_the_command() -> None:
    entry = only("*/5 * * * * A=b run x=y")
    assert (entry.command, entry.env) == ("A=b run x=y", {})
    assert only("@daily A=b run").command == "A=b run"


def test_the_shell_and_the_home_of_the_table_are_those_of_the_command() -> None:
    entry = only("SHELL=/bin/bash\nHOME=/srv\n@daily x")
    assert entry.argv == ["/bin/bash", "-c", "x"]
    assert entry.cwd == "/srv"
    assert entry.env == {"SHELL": "/bin/bash", "HOME": "/srv"}
    assert "SHELL" in read_crontab("SHELL=bash").refused[0].reason


def test_what_looks_like_a_secret_is_stored_as_one() -> None:
    table = read_crontab("DB_PASSWORD=hunter2\nPLAIN=1\n@daily x")
    assert table.entries[0].secret_env == {"DB_PASSWORD": "hunter2"}
    assert table.entries[0].env == {"PLAIN": "1"}
    assert "DB_PASSWORD" in notes(table)
    assert "hunter2" not in notes(table)


def test_a_setting_that_is_refused_does_not_show_its_value() -> None:
    table = read_crontab("DULY_DATABASE_URL=postgresql://u:hunter2@h/d\n9TOKEN=hunter2\n@daily x")
    assert [refused.line for refused in table.refused] == [1, 2]
    assert "hunter2" not in repr(table)


def test_mail_is_not_carried_over_and_that_is_said_only_where_it_matters() -> None:
    table = read_crontab("MAILTO=ops@example.org\nMAILFROM=x\n@daily x")
    assert table.entries[0].env == {}
    assert "MAILTO" in notes(table)
    assert read_crontab('MAILTO=""\n@daily x').notes == ()


# Zones


def test_cron_tz_is_the_zone_of_the_lines_below_and_tz_only_reaches_the_commands() -> None:
    table = read_crontab(
        "TZ=Asia/Tokyo\n0 1 * * * a\nCRON_TZ=America/New_York\n0 2 * * * b\n", timezone="Europe/Berlin"
    )
    assert [entry.timezone for entry in table.entries] == ["Europe/Berlin", "America/New_York"]
    assert all(entry.env == {"TZ": "Asia/Tokyo"} for entry in table.entries)
    assert "Europe/Berlin" in notes(table)


def test_an_unknown_zone_refuses_the_lines_it_is_meant_for_and_no_others() -> None:
    table = read_crontab("@daily a\nCRON_TZ=Mars/Olympus\n@daily b\nCRON_TZ=Asia/Tokyo\n@daily c\nCRON_TZ=\n@daily d")
    zones = [(entry.command, entry.timezone) for entry in table.entries]
    assert zones == [("a", "UTC"), ("c", "Asia/Tokyo"), ("d", "UTC")]
    assert [refused.line for refused in table.refused] == [2, 3]
    with pytest.raises(InvalidInput, match="timezone"):
        read_crontab("", timezone="Mars/Olympus")


def test_a_random_delay_becomes_jitter() -> None:
    table = read_crontab("RANDOM_DELAY=45\n@daily x")
    assert table.entries[0].jitter_seconds == 2700
    assert "RANDOM_DELAY" in notes(table)
    assert "minutes" in read_crontab("RANDOM_DELAY=soon").refused[0].reason


# Percent signs


def output(entry: Entry) -> str:
    """The output of the command, run as a worker would run it, with the payload on its standard input."""
    return subprocess.run(entry.argv, input="{}", capture_output=True, text=True, check=True, timeout=30).stdout


def test_what_follows_a_percent_sign_is_the_commands_input() -> None:
    entry = only("@daily cat; echo end%first line%second 'line' $HOME \"%third")
    assert entry.command == "cat; echo end"
    assert entry.stdin == "first line\nsecond 'line' $HOME \"\nthird\n"
    assert output(entry) == entry.stdin + "end\n"


def test_an_escaped_percent_sign_is_a_percent_sign() -> None:
    entry = only(r"@daily printf '\%s' 50\% ; date +\%Y")
    assert entry.command == "printf '%s' 50% ; date +%Y"
    assert entry.stdin is None
    assert output(entry).startswith("50%")
    assert only(r"@daily cat%50\% off").stdin == "50% off\n"


def test_the_exit_code_of_a_command_with_input_is_the_commands_own() -> None:
    ended = subprocess.run(only("@daily exit 7%x").argv, input="{}", text=True, check=False, timeout=30)
    assert ended.returncode == 7


def test_a_command_with_input_runs_in_the_tables_shell() -> None:
    entry = only('SHELL=/bin/bash\n@daily cat >/dev/null; echo "$BASH"%x')
    assert output(entry) == "/bin/bash\n"


# The system format


def test_the_system_format_has_a_user_before_the_command() -> None:
    entry = only("17 *\t* * *\troot    cd / && run-parts /etc/cron.hourly", system=True)
    assert (entry.user, entry.command) == ("root", "cd / && run-parts /etc/cron.hourly")
    assert any("root" in note for note in entry.notes)
    assert (only("@daily www-data x", system=True).user, only("-@daily u x", system=True).user) == ("www-data", "u")
    assert "user" in reason("17 * * * * root", system=True)


def test_a_system_table_read_as_a_users_is_noticed() -> None:
    assert any("--system" in note for note in only("@daily root run-parts /etc/cron.daily").notes)


# Keys


def test_keys_are_the_same_for_the_same_line_wherever_it_stands() -> None:
    first = read_crontab("0 1 * * * a\n0 2 * * * b\n").entries
    again = read_crontab("# new\nX=1\n0  2 * * *  b\n0 1 * * * a\n").entries
    assert {entry.command: entry.key for entry in first} == {entry.command: entry.key for entry in again}
    assert len({entry.key for entry in first}) == 2


def test_keys_differ_by_schedule_zone_user_command_and_input() -> None:
    texts = ["0 1 * * * a", "0 2 * * * a", "0 1 * * * b", "0 1 * * * a%", "CRON_TZ=Asia/Tokyo\n0 1 * * * a"]
    keys = {only(text).key for text in texts} | {only("0 1 * * * u a", system=True).key}
    assert len(keys) == 6


def test_two_equal_lines_are_two_jobs() -> None:
    table = read_crontab("0 1 * * * a\n0 1 * * * a\n")
    assert len({entry.key for entry in table.entries}) == 2
    assert read_crontab("0 1 * * * a\n0 1 * * * a\n") == table


# Any text


def test_a_table_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        read_crontab("#" * 1_100_000)


def test_a_long_name_is_cut_and_the_command_is_not() -> None:
    entry = only("@daily echo " + "x" * 500)
    assert len(entry.name) == 100
    assert len(entry.command) == 505


_text = st.text(alphabet=st.characters(exclude_characters="\n"), max_size=40)
_begun = st.sampled_from(["", "* * * * * ", "@daily\t", "0 1 * * * root ", "A=", "CRON_TZ=", "-@hourly ", "%"])
_line = st.builds(lambda begun, text, end: begun + text + end, _begun, _text, st.sampled_from(["", "%", "\\%", "\r"]))


@given(st.lists(_line, max_size=8), st.booleans())
def test_whatever_the_text_every_line_is_accounted_for_and_every_job_can_be_submitted(
    lines: list[str], system: bool
) -> None:
    table = read_crontab("\n".join(lines), system=system)
    for entry in table.entries:
        check_target(entry.handler)
        assert 1 <= len(entry.name) <= 200
        assert entry.line <= len(lines)
    assert len({entry.key for entry in table.entries}) == len(table.entries)
    told = {entry.line for entry in table.entries} | {refused.line for refused in table.refused}
    for number, line in enumerate(lines, 1):
        text = (line if number > 1 else line.removeprefix("\ufeff")).removesuffix("\r").strip(" \t")
        if text and not text.startswith("#") and "=" not in text:
            assert number in told
