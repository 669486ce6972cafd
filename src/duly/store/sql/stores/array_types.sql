-- Every array type that is sent over a caller's connection, so that its driver learns them.
select $1::uuid[], $2::smallint[], $3::text[], $4::bytea[], $5::timestamptz[], $6::int[], $7::boolean[]
