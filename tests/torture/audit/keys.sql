-- The identity of a change, for a comparison of two primaries: numbers and transaction ids are given out anew after a
-- promotion, so all three must be equal.
select n, txid, at from torture.audit
