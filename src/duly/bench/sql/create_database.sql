-- {name} and {template} are made by the bench itself and quoted
create database {name} template {template} {strategy}
