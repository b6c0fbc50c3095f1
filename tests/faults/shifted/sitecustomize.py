"""Makes a process believe that it is another time: put this directory on PYTHONPATH, and seconds in FAULTS_SHIFT."""

import datetime
import os
import time

SHIFT = float(os.environ.get("FAULTS_SHIFT", "0"))


def _shift() -> None:
    now, now_ns, monotonic, monotonic_ns = time.time, time.time_ns, time.monotonic, time.monotonic_ns
    nanos = int(SHIFT * 1e9)
    # A monotonic clock may begin anywhere, but does not run backwards past zero.
    origin = abs(SHIFT)
    time.time = lambda: now() + SHIFT
    time.time_ns = lambda: now_ns() + nanos
    time.monotonic = lambda: monotonic() + origin
    time.monotonic_ns = lambda: monotonic_ns() + int(origin * 1e9)
    real = datetime.datetime

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Shifted(real, metaclass=Meta):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return real.now(tz) + datetime.timedelta(seconds=SHIFT)

        @classmethod
        def utcnow(cls) -> datetime.datetime:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    datetime.datetime = Shifted  # type: ignore[misc]


if SHIFT:
    _shift()
