"""All that becomes JSON and comes back, in one place to import from: values, the arguments of calls, exceptions."""

from perdure.failures import decode_failure, describe, encode_failure, rebuild
from perdure.signature import Signature
from perdure.values import Decoder, encode

__all__ = ["Decoder", "Signature", "decode_failure", "describe", "encode", "encode_failure", "rebuild"]
