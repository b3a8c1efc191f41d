"""
Systems that the papers compare with: plain PyTorch modules that lab/reproduce/run.py trains, tests and lists.

They are not part of the package. run.py imports this folder, which registers each as a `family`.
"""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from hf_lenctrl.commands.arguments import ENCODINGS, FAMILIES
from hf_lenctrl.commands.models import CLASSES

from .convs2s import ConvS2S, ConvS2SConfig
from .length_attention import LengthAttentionConfig, LengthAttentionLstm
from .lpas import Lpas, LpasConfig
from .lstm import Lstm, LstmConfig


for _name, _config_class, _model_class in (
    ("lstm", LstmConfig, Lstm),
    ("length_attention", LengthAttentionConfig, LengthAttentionLstm),
    ("convs2s", ConvS2SConfig, ConvS2S),
    ("lpas", LpasConfig, Lpas),
):
    # a configuration has the fields of LenCtrlMarianConfig, and its own names of `length_encoding`
    CLASSES[_name, False] = _config_class, _model_class
    FAMILIES.append(_name)
    ENCODINGS.extend(encoding for encoding in _config_class.encodings if encoding not in ENCODINGS)
    AutoConfig.register(_config_class.model_type, _config_class)
    AutoModelForSeq2SeqLM.register(_config_class, _model_class)
