-- Keeps every claim waiting until this transaction ends.
set local idle_in_transaction_session_timeout = 0;
lock table duly.runs in access exclusive mode
