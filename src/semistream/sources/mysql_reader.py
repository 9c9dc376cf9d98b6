"""The process in which connectorx runs one statement: its task on standard input, rows as an Arrow stream on output."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: nothing of a scan may depend on where the server is, or end because the reader of its rows is busy
_SESSION = ["SET SESSION time_zone = '+00:00'", "SET SESSION net_write_timeout = 3600"]


def main() -> None:
    # Whoever started this may be killed while this is halted: then nobody would ever wake or end it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    task = json.load(sys.stdin)
    import connectorx
    import pyarrow as pa

    out = os.dup(1)
    # Rows are alone on standard output, whatever a library prints.
    os.dup2(2, 1)
    rows = connectorx.read_sql(
        task["dsn"],
        task["statement"],
        return_type="arrow_stream",
        batch_size=task["rows"],
        pre_execution_query=_SESSION,
    )
    with os.fdopen(out, "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        for batch in rows:
            stream.write_batch(batch)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        # A panic is no Exception, and comes with its trace on standard error: this line is the last one there.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        os._exit(1)
