"""The `duly` command. Read in this order:

- `main.py`: the list of commands, the global options, and how every error ends as one sentence and an exit code.
- `invocation.py`: a command's settings and its open store; `backend.py`: the same behind a REST API (`--url`).
- `options.py` and `output.py`: options that several commands share, and everything that is printed.
- `commands/`: one module per command, named as the command.
- The rest serves single commands: `bulk.py` (`submit --file`), `crontab.py` (`import crontab`), `loading.py` (`--app`),
  `supervised.py`, `api_process.py`, `ending.py` and `runlog.py` (processes that run until a signal), `demo.py`.
"""
