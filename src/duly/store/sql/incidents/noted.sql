-- The jobs that were noted as having alerts, after a moment.   $1 that moment, by the server's own clock
select job_id, since from duly.alerting where since > $1 order by since
