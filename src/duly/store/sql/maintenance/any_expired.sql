-- Is there a claim to rescue? The answer is almost always no.
select 1 from duly.claims where lease_until < (select duly.now()) limit 1
