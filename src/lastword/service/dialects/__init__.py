"""The API dialects: a file or a folder for each, and one table of them."""

from lastword.service.dialect import Dialect
from lastword.service.dialects.native import NATIVE
from lastword.service.dialects.openai.routes import OPENAI
from lastword.service.dialects.typesafe import TYPESAFE

DIALECTS: tuple[Dialect, ...] = (NATIVE, OPENAI, TYPESAFE)
