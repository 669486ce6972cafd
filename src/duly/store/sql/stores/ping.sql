-- Readiness: answers if the store does.
select 1 as answer
