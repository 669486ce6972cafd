-- The time of which the survey has counted every active job; null: its first walk goes on.
select surveyed_at from duly.survey
