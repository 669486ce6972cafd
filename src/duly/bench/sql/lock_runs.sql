-- Nobody can claim before this transaction ends, however long that takes.
set local idle_in_transaction_session_timeout = 0;
lock table duly.runs in access exclusive mode
