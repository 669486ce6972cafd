-- {name} and {template} are made here and need no quotes
create database {name} template {template}
