-- Is there a claim to rescue? The answer is almost always no. And is there any claim at all?
select exists (select from duly.claims where lease_until < (select duly.now())) as expired,
    exists (select from duly.claims) as held
