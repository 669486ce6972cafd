-- Functions, operators and types in `public` that fit what Duly hands over as well as PostgreSQL's own, or better.
-- Each counts that it was called, which no rollback undoes, and fails.   setting traps.names: of functions, with blanks
create sequence public.trapped;
grant usage on sequence public.trapped to public;
do $do$
declare
    numbers text[] := '{int2,int4,int8,float4,float8,numeric}';
    times text[] := '{timestamptz,timestamp,date,interval}';
    others text[] := '{bool,text,name,uuid,jsonb,bytea,oid,regclass,xid,tid}';
    arrays text[] := '{bool[],int2[],int4[],text[],uuid[],timestamptz[],bytea[],jsonb[]}';
    makers text[] := '{+,-,*,/,%,^,||,->,->>,#>>,&,|,<<}';
    signs text[] := makers || '{=,<>,<,>,<=,>=,@>,<@,?,&&,~,!~,~~,!~~,~*}'::text[];
    body text := $$ begin perform pg_catalog.nextval('public.trapped'); raise exception 'a trap was called'; end $$;
    one record;
    sign text;
begin
    for one in
        select l, r
        from unnest(numbers || times || others || arrays) l
        cross join unnest(numbers || times || others || arrays) r
        -- A literal counts as what is on the other side of it.
        where l = r
            or l = any (numbers) and r = any (numbers || times)
            or l = any (times) and r = any (numbers || times)
            or 'text' in (l, r)
            or l = r || '[]'
            or r = l || '[]'
            or l in ('oid', 'regclass', 'int4', 'int8') and r in ('oid', 'regclass', 'int4', 'int8')
            or l = 'jsonb' and r in ('int4', 'text[]')
    loop
        execute format('create function public.compares(pg_catalog.%s, pg_catalog.%s) returns pg_catalog.bool '
            'language plpgsql as %L', one.l, one.r, body);
        execute format('create function public.makes(pg_catalog.%1$s, pg_catalog.%2$s) returns pg_catalog.%1$s '
            'language plpgsql as %3$L', one.l, one.r, body);
        foreach sign in array signs loop
            execute format('create operator public.%s (function = public.%s, leftarg = pg_catalog.%s, '
                'rightarg = pg_catalog.%s)', sign, case when sign = any (makers) then 'makes' else 'compares' end,
                one.l, one.r);
        end loop;
    end loop;

    -- Every function that is called anywhere, for some types where PostgreSQL's own takes any.
    for one in
        select distinct quote_ident(p.proname) as name, given.types,
            case when p.proretset then 'setof ' else '' end || case
                when made.type in ('anyarray', 'anycompatiblearray') then 'pg_catalog.' || t.name || '[]'
                when made.type in ('anyelement', 'anynonarray', 'anycompatible') then 'pg_catalog.' || t.name
                else made.type
            end as made
        from pg_proc p
        cross join unnest('{uuid,text,int4,int2,timestamptz,jsonb,bytea,bool}'::text[]) as t (name)
        cross join lateral (select format_type(p.prorettype, null)) as made (type)
        cross join lateral (
            select coalesce(string_agg(case
                when of_each.type in ('anyarray', 'anycompatiblearray') then 'pg_catalog.' || t.name || '[]'
                when of_each.type in ('anyelement', 'anynonarray', 'anycompatible', '"any"') then 'pg_catalog.' || t.name
                else of_each.type
            end, ', ' order by of_each.place), '')
            from (
                select format_type(g.oid, null) as type, g.place
                from unnest(p.proargtypes) with ordinality as g (oid, place)
            ) of_each
        ) as given (types)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proallargtypes is null and p.prokind in ('f', 'a')
            and p.proname = any (string_to_array(current_setting('traps.names'), ' '))
    loop
        begin
            execute format('create function public.%s(%s) returns %s language plpgsql as %L', one.name, one.types,
                one.made, body);
        exception when duplicate_function or invalid_function_definition or feature_not_supported then
            null; -- internal types
        end;
    end loop;
    -- These fit better than what PostgreSQL has.
    foreach sign in array array[
        'power(int4, int4) returns float8', 'to_timestamp(numeric) returns timestamptz',
        'make_interval(secs int4) returns interval', 'to_hex(int2) returns text', 'lpad(text, int2, text) returns text',
        'concat(text, text, text, text) returns text', 'concat(int2, text, uuid, text, int8) returns text',
        'jsonb_build_object(text, text) returns jsonb', 'make_partition(text, date, int4) returns text'
    ] loop
        execute format('create function public.%s language plpgsql as %L', sign, body);
    end loop;
    -- The check of a domain runs with the rights of whoever casts to it. Where a path has `public` first, it is the type.
    foreach sign in array numbers || times || others loop
        execute format('create domain public.%1$s as pg_catalog.%1$s check (public.makes(value, value) is not null)', sign);
    end loop;
end
$do$;
