"""A small Faust app for the embedded broker's tests: it copies `in` to `out`, one line to stdout when it is ready."""

import sys

import faust

app = faust.App(
    "copier",
    broker=f"kafka://{sys.argv[1]}",
    store="memory://",
    web_enabled=False,
    topic_allow_declare=False,
    topic_disable_leader=True,
    stream_wait_empty=False,
    broker_session_timeout=3,
    broker_heartbeat_interval=1,
    broker_request_timeout=10,
)
source = app.topic("in", key_type=bytes, value_type=bytes, value_serializer="raw", key_serializer="raw")
target = app.topic("out", key_type=bytes, value_type=bytes, value_serializer="raw", key_serializer="raw")


@app.agent(source)
async def copy(stream: faust.StreamT[bytes]) -> None:
    async for key, value in stream.items():
        await target.send(key=key, value=value)


if __name__ == "__main__":
    faust.Worker(app, loglevel="warning").execute_from_commandline()
