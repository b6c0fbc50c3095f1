"""When work that failed is tried again: a pure description, the same for steps and for workflows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import isfinite

from perdure.errors import InvalidInput

ExceptionTypes = type[Exception] | tuple[type[Exception], ...]

_LONGEST = timedelta(days=36_500).total_seconds()


@dataclass(frozen=True)
class Retry:
    """How often, how late and after which errors something is tried again.

    The wait after attempt n is `delay * factor ** (n - 1)`, at most `max_delay`. Of that, up to the share `jitter`
    is taken off at random, so that what failed together does not come back together; `jitter=1` draws from
    the whole range down to zero.

    ```python
    Retry(attempts=5, delay=2, give_up_on=ValueError)  # waits of about 2, 4, 8 and 16 seconds
    Retry(attempts=None, delay=timedelta(minutes=1), factor=1)  # every minute, without end
    Retry(attempts=1)  # no second attempt
    ```

    Raises `InvalidInput` for values that can't be.
    """

    attempts: int | None = 3
    """How many attempts there are in all, the first one included; None for no end."""
    delay: float | timedelta = 1.0
    """The wait after the first attempt, in seconds."""
    factor: float = 2.0
    """By what each wait is longer than the one before; 1 keeps them equal."""
    max_delay: float | timedelta = 300.0
    """The longest wait, in seconds."""
    jitter: float = 0.1
    """The share of each wait, from 0 to 1, that is left to chance."""
    on: ExceptionTypes = Exception
    """The exceptions after which there is another attempt."""
    give_up_on: ExceptionTypes = ()
    """Exceptions that end it at once, though `on` has them."""

    def __post_init__(self) -> None:
        if self.attempts is not None and not (_is_int(self.attempts) and self.attempts >= 1):
            raise InvalidInput(f"Retry(attempts={self.attempts!r}): give a whole number from 1 on, or None for no end")
        for name, value in (("delay", self.delay), ("max_delay", self.max_delay)):
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            if not (_is_number(seconds) and 0 <= seconds <= _LONGEST):
                raise InvalidInput(f"Retry({name}={value!r}): give seconds (0 or more) or a timedelta, below 100 years")
        if not (_is_number(self.factor) and isfinite(self.factor) and self.factor >= 1):
            raise InvalidInput(f"Retry(factor={self.factor!r}): give a number from 1 on")
        if not (_is_number(self.jitter) and 0 <= self.jitter <= 1):
            raise InvalidInput(f"Retry(jitter={self.jitter!r}): give a share from 0 to 1")
        for name, types in (("on", self.on), ("give_up_on", self.give_up_on)):
            if not all(_is_exception_type(each) for each in (types if isinstance(types, tuple) else (types,))):
                raise InvalidInput(f"Retry({name}={types!r}): give an exception class or a tuple of them")

    def allows(self, attempt: int) -> bool:
        """Whether another attempt may follow the attempt of that number (from 1)."""
        return self.attempts is None or attempt < self.attempts

    def covers(self, error: BaseException) -> bool:
        """Whether this error is one to try again after."""
        return isinstance(error, self.on) and not isinstance(error, self.give_up_on)

    def delay_after(self, attempt: int, random: float) -> int:
        """The wait between the attempt of that number (from 1) and the next, in milliseconds.

        `random` is from [0, 1): 0 gives the longest wait. The result is between 0 and `max_delay`.
        """
        delay, longest = _seconds(self.delay), _seconds(self.max_delay)
        try:
            nominal = min(delay * float(self.factor) ** (attempt - 1), longest)
        except OverflowError:
            nominal = longest if delay else 0.0
        return int(nominal * (1 - self.jitter * random) * 1000)


def check_retry(retry: object) -> Retry | None:
    """What a decorator gets for `retry`, or `InvalidInput`."""
    if retry is None or isinstance(retry, Retry):
        return retry
    wanted = f"Retry(attempts={retry})" if _is_int(retry) else "Retry(attempts=3)"
    raise InvalidInput(f"retry is a Retry, not {retry!r}: write retry={wanted}")


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


# These take `object`: what is annotated is not what callers without a type checker pass.


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
