"""The forms of quantised weights that we read, recognised by their tensors alone."""

from convert.published.forms.compressed_tensors import INT4_GROUP as INT4_GROUP
from convert.published.forms.form import Form as Form
from convert.published.forms.form import Parts as Parts
from convert.published.forms.form import ReadPart as ReadPart
from convert.published.forms.fp8 import FP8_BLOCK as FP8_BLOCK
from convert.published.forms.fp8 import FP8_CHANNEL as FP8_CHANNEL
from convert.published.forms.quark import INT4_AWQ as INT4_AWQ
from convert.published.forms.quark import INT4_LINEAR as INT4_LINEAR
from convert.published.forms.quark import MXFP4 as MXFP4
from convert.published.forms.quark import W4A8 as W4A8
