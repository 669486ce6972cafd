-- Who offered these tasks last, and with which defaults.   $1 names
select h.name, h.defaults::text as defaults, h.owner, h.deploy
from duly.handlers h
where h.name = any ($1::text[])
order by h.name
