"""
Systems that the papers compare with: plain PyTorch modules that recipes/reproduce/run.py trains, tests and lists.

They are not part of the package. run.py imports this folder, which registers each as a `family`.
"""

from hf_lenctrl.commands.models import register_family

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
    register_family(_name, _config_class, _model_class)
