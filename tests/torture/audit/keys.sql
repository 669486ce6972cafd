-- What each of the two would have to have in common: numbers and transactions are given out anew after a promotion.
select n, txid, at from torture.audit
