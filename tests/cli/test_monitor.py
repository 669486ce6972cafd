"""`duly monitor`: on the store itself and through the API."""

from __future__ import annotations

from collections.abc import Callable

from harness.commands import Ended, Process

Run = Callable[..., Ended]


def test_a_monitor_is_made_pinged_shown_and_removed(duly: Run) -> None:
    new = duly("monitor", "set", "nightly", "--schedule", "0 3 * * *", "--grace", "900", "--max-runtime", "60")
    assert "made nightly: 0 3 * * * UTC" in new.out
    assert "ping it at $DULY_URL/ping/" in new.out
    changed = duly("monitor", "set", "nightly", "--schedule", "@daily", "--description", "backup")
    assert "changed nightly" in changed.out
    assert "/ping/" not in changed.out
    assert "/ping/" in duly("monitor", "set", "nightly", "--schedule", "@daily", "--new-token").out
    assert duly("monitor", "ping", "nightly", "--start", "--rid", "a").out == "pinged nightly: start\n"
    assert duly("monitor", "ping", "nightly", "--exit-status", "0", "--note", "12 GB\x1b[31m").code == 0
    (listed,) = duly("monitor", "list", "--json").lines
    assert (listed["slug"], listed["state"]) == ("nightly", "up")
    assert duly("monitor", "ping", "nightly", "--fail").out == "pinged nightly: failure\n"
    shown = duly("monitor", "show", "nightly").out
    assert "down (it failed at" in shown
    assert "12 GB" in shown
    assert "\x1b[31m" not in shown
    assert "nightly" in duly("monitor", "list").out
    assert duly("monitor", "remove", "nightly").code == 0
    gone = duly("monitor", "show", "nightly")
    assert (gone.code, "there is no monitor 'nightly'" in gone.err) == (4, True)
    assert "no monitors" in duly("monitor", "list").err


def test_wrong_input_is_named(duly: Run) -> None:
    for arguments, field in (
        (("set", "Nightly", "--schedule", "@daily"), "slug"),
        (("set", "nightly", "--schedule", "now"), "schedule"),
        (("set", "nightly", "--schedule", "@daily", "--grace", "-1"), "grace_seconds"),
        (("set", "nightly", "--schedule", "@daily", "--timezone", "Europe/Atlantis"), "timezone"),
        (("ping", "nightly", "--start", "--fail"), "--start"),
    ):
        refused = duly("monitor", *arguments)
        assert (refused.code, field in refused.err) == (2, True), refused.err


def test_through_the_api(duly: Run, start: Callable[..., Process]) -> None:
    api = start("api", "--port", "0")
    url = api.wait_for(r"http://127\.0\.0\.1:\d+")[0]
    made = duly("--url", url, "monitor", "set", "nightly", "--schedule", "every 15m")
    assert f"ping it at {url}/ping/" in made.out, made.err
    for options in ((), ("--start",), ("--exit-status", "3")):
        assert duly("--url", url, "monitor", "ping", "nightly", *options).code == 0
    shown = duly("--url", url, "monitor", "show", "nightly", "--json").document
    assert [one["event"] for one in shown["pings"]] == ["failure", "start", "success"]
    assert [one["slug"] for one in duly("--url", url, "monitor", "list", "--json").lines] == ["nightly"]
    assert duly("--url", url, "monitor", "remove", "nightly").code == 0
