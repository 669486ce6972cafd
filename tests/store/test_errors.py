"""The class that each error of the server gets, and the options with which Duly opens a connection."""

from __future__ import annotations

import asyncpg
import pytest

from duly.errors import DataRefused, DulyError, StoreUnavailable, StoreUnusable
from duly.store.pool import connection_options, is_spent, may_be_one_rows, translated_errors

URL = "postgresql://duly@localhost/duly"


def _error(state: str) -> asyncpg.PostgresError:
    error: asyncpg.PostgresError = asyncpg.PostgresError.new({"C": state, "M": "so it is", "S": "ERROR"})
    return error


@pytest.mark.parametrize("state", ["22003", "22P02", "22012", "23505", "23514", "23502"])
def test_only_what_is_said_of_the_data_is_held_against_them(state: str) -> None:
    with pytest.raises(DataRefused), translated_errors(URL):
        raise _error(state)


@pytest.mark.parametrize(
    "state",
    ["08006", "0A000", "25006", "25P02", "25P03", "40001", "40P01", "42601", "53100", "53200", "53300", "54000",
     "55000", "55006", "55P03", "57014", "57P01", "57P02", "57P03", "58030", "XX000", "P0001"],
)  # fmt: skip
def test_everything_else_is_the_servers_own_affair_and_passes(state: str) -> None:
    with pytest.raises(StoreUnavailable), translated_errors(URL):
        raise _error(state)


@pytest.mark.parametrize("state", ["28P01", "28000", "3D000", "42501", "42P01", "42883"])
def test_a_store_that_is_not_set_up_says_what_to_do(state: str) -> None:
    with pytest.raises(StoreUnusable), translated_errors(URL):
        raise _error(state)


def _translated(error: Exception) -> DulyError:
    with pytest.raises(DulyError) as raised, translated_errors(URL):
        raise error
    return raised.value


@pytest.mark.parametrize("state", ["P0001", "0A000", "54000", "XX000", "XX001", "42P01", "42501", "22003", "23505"])
def test_what_a_trigger_or_a_damaged_page_says_may_be_one_rows(state: str) -> None:
    assert may_be_one_rows(_translated(_error(state)))


@pytest.mark.parametrize(
    "state",
    ["08006", "25006", "25P02", "28P01", "3D000", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014",
     "57P01", "57P03"],
)  # fmt: skip
def test_what_is_said_of_the_server_or_of_a_race_is_no_rows(state: str) -> None:
    assert not may_be_one_rows(_translated(_error(state)))


@pytest.mark.parametrize("error", [OSError("reset"), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_an_answer_that_was_lost_is_no_rows(error: Exception) -> None:
    assert not may_be_one_rows(_translated(error))


@pytest.mark.parametrize("error", [OSError("reset"), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_no_answer_at_all_passes_too(error: Exception) -> None:
    with pytest.raises(StoreUnavailable), translated_errors(URL):
        raise error


@pytest.mark.parametrize(("state", "spent"), [("25006", True), ("57P01", True), ("57014", False), ("55P03", False)])
def test_a_connection_to_a_server_that_cannot_be_written_to_any_more_is_ended(state: str, spent: bool) -> None:
    assert is_spent(_error(state)) == spent


def test_what_a_role_or_a_database_has_set_is_set_back() -> None:
    ours = connection_options(URL)["server_settings"]
    assert ours["search_path"].split(",")[0].strip() == "pg_catalog"
    assert ours["lock_timeout"] == "0"
    assert ours["default_transaction_isolation"] == "read committed"
    assert ours["idle_in_transaction_session_timeout"] == "5s"
    assert "statement_timeout" in ours
