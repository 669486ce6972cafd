"""`duly import crontab`: shows the lines it understands, names the others, and can be repeated without effect."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from duly.cli.commands import import_
from harness.commands import Ended, Process

Run = Callable[..., Ended]

TABLE = """\
# what the old machine did
MAILTO=ops@example.org
PATH=/usr/local/bin:/usr/bin:/bin
DB_PASSWORD=hunter2

*/15 * * * *    poll --quick
30 2 * * *      backup --all > /var/log/backup.log 2>&1
CRON_TZ=America/New_York
0 9 * * mon-fri mail -s Report ops%Good morning%all is well
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.write_text(TABLE)
    return path


def test_a_dry_run_shows_the_next_times_and_what_is_different_and_submits_nothing(duly: Run, table: Path) -> None:
    ended = duly("import", "crontab", str(table), "--timezone", "Europe/Berlin", "--dry-run")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].split() == ["LINE", "SCHEDULE", "ZONE", "NEXT", "LOCAL", "NEXT", "UTC", "COMMAND"]
    assert lines[2].startswith("7")
    assert "30 2 * * *" in lines[2]
    assert "Europe/Berlin" in lines[2]
    assert "02:30+0" in lines[2]
    assert "backup --all" in lines[2]
    assert "America/New_York" in lines[3]
    assert "MAILTO" in ended.err
    # The clocks change within a year, and then skip 02:30.
    assert "line 7: on " in ended.err
    assert "does not exist in Europe/Berlin" in ended.err
    assert "hunter2" not in ended.out + ended.err
    assert duly("job", "list", "--json").lines == []


def test_the_jobs_do_what_the_lines_did(duly: Run, table: Path) -> None:
    ended = duly("import", "crontab", str(table), "--timezone", "Europe/Berlin", "--queue", "cron", "--yes")
    assert ended.code == 0, ended.err
    jobs = {job["name"]: job for job in duly("job", "list", "--json").lines}
    assert len(jobs) == 3
    poll = jobs["poll --quick"]
    assert poll["handler"]["argv"] == ["/bin/sh", "-c", "poll --quick"]
    assert poll["handler"]["env"] == {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    assert poll["handler"]["secret_env"] == {"DB_PASSWORD": "***"}
    assert (poll["schedule"], poll["timezone"], poll["queue"]) == ("*/15 * * * *", "Europe/Berlin", "cron")
    assert poll["labels"] == {"imported": "crontab", "source": f"{socket.gethostname()}:{table}"}
    # As with cron, runs are not retried, missed occurrences are not made up for, and runs may overlap.
    assert (poll["max_retries"], poll["missed_window"], poll["overlap"]) == (0, "SKIP", "parallel")
    assert poll["timeout_seconds"] == 86400
    report = jobs["mail -s Report ops"]
    assert report["timezone"] == "America/New_York"
    assert "Good morning\nall is well\n" in report["handler"]["argv"]


def test_importing_twice_changes_nothing(duly: Run, table: Path) -> None:
    first = duly("import", "crontab", str(table), "--yes", "--timezone", "UTC")
    table.write_text("# moved\n" + TABLE)
    again = duly("import", "crontab", str(table), "--yes", "--timezone", "UTC")
    assert (first.code, again.code) == (0, 0)
    assert again.out.count("(was there already)") == 3
    assert len(duly("job", "list", "--json").lines) == 3


def test_the_same_line_with_other_settings_is_a_conflict_that_keeps_no_other_out(duly: Run, table: Path) -> None:
    assert duly("import", "crontab", str(table), "--yes", "--timezone", "UTC").code == 0
    table.write_text(TABLE + "\n@daily new\n")
    ended = duly("import", "crontab", str(table), "--yes", "--timezone", "UTC", "--queue", "other")
    assert ended.code == 5
    assert "content is different" in ended.err
    jobs = duly("job", "list", "--json").lines
    assert {job["name"]: job["queue"] for job in jobs}["new"] == "other"
    assert len(jobs) == 4


def test_a_line_that_cannot_be_carried_over_stops_it_unless_skipped(duly: Run, table: Path) -> None:
    table.write_text("@reboot start-it\n0 1 * * * fine\n")
    stopped = duly("import", "crontab", str(table), "--yes")
    assert stopped.code == 2
    assert "line 1: cannot be imported: @reboot" in stopped.err
    assert "nothing was submitted" in stopped.err
    assert duly("job", "list", "--json").lines == []
    assert duly("import", "crontab", str(table), "--dry-run").code == 2
    skipped = duly("import", "crontab", str(table), "--yes", "--skip-unknown")
    assert skipped.code == 0
    assert [job["name"] for job in duly("job", "list", "--json").lines] == ["fine"]


def test_the_system_format_is_read_from_standard_input_as_json(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "17 *\t* * *\troot    cd / && run-parts /etc/cron.hourly\n@reboot root x\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ended = duly("import", "crontab", "-", "--system", "--yes", "--skip-unknown", "--json", "--timezone", "UTC")
    assert ended.code == 0, ended.err
    [job] = ended.document["jobs"]
    assert (job["line"], job["user"], job["status"]) == (1, "root", "created")
    assert job["handler"]["argv"][2] == "cd / && run-parts /etc/cron.hourly"
    assert len(job["next"]) == 3
    assert job["next"][0]["scheduled_at"].endswith(":17:00Z")
    assert any("root" in note for note in job["notes"])
    assert [refused["line"] for refused in ended.document["refused"]] == [2]
    shown = duly("job", "show", job["job_id"], "--json").document
    assert shown["labels"] == {"imported": "crontab", "user": "root"}


def test_where_nobody_can_be_asked_it_wants_to_be_told(duly: Run, table: Path) -> None:
    ended = duly("import", "crontab", str(table))
    assert ended.code == 2
    assert "--yes" in ended.err
    assert duly("job", "list", "--json").lines == []


def test_bad_files_and_zones_are_said_in_one_sentence(duly: Run, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"# fine\n* * * * * \xff\n")
    for arguments, words in (
        (["no-such-file"], "no-such-file"),
        (["."], "cannot be read"),
        (["binary"], "line 2"),
        (["/dev/null", "--timezone", "Mars/Olympus"], "Mars/Olympus"),
    ):
        ended = duly("import", "crontab", *arguments, "--yes")
        assert ended.code == 2
        assert words in ended.err
        assert ended.err.count("\n") == 1
    empty = duly("import", "crontab", "/dev/null", "--yes")
    assert (empty.code, empty.out) == (0, "")
    assert "no line is a job" in empty.err


def test_the_zone_is_this_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert import_.local_zone() == ("Asia/Tokyo", False)
    monkeypatch.setenv("TZ", "EST5EDT4,M3.2.0")
    monkeypatch.setattr(import_, "_zone_of_link", lambda: "Europe/Berlin")
    assert import_.local_zone() == ("Europe/Berlin", False)
    monkeypatch.setattr(import_, "_zone_of_link", lambda: "")
    monkeypatch.setattr(import_, "_zone_of_file", lambda: "")
    assert import_.local_zone() == ("UTC", True)


def test_an_imported_line_runs_as_cron_would_run_it(
    duly: Run, start: Callable[..., Process], project: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    table = tmp_path / "table"
    table.write_text(f'GREETING=hello there\n@yearly cat > {output}; echo "$GREETING" >> {output}%one%two\n')
    job_id = duly("import", "crontab", str(table), "--yes", "--json").document["jobs"][0]["job_id"]
    worker = start("worker", "--allow-commands")
    worker.wait_for("is running")
    assert duly("job", "trigger", job_id).code == 0
    worker.wait_for("succeeded")
    assert output.read_text() == "one\ntwo\nhello there\n"
    assert json.loads(duly("job", "runs", job_id, "--json").out.splitlines()[0])["status"] == "succeeded"
