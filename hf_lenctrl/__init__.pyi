"""The public names and where they are, for type checkers and for `__init__.py`."""

from .adapters import load_adapter as load_adapter
from .configuration_lenctrl import (
    LenCtrlBartConfig as LenCtrlBartConfig,
    LenCtrlCausalLMConfig as LenCtrlCausalLMConfig,
    LenCtrlM2M100Config as LenCtrlM2M100Config,
    LenCtrlMarianConfig as LenCtrlMarianConfig,
    LenCtrlMBartConfig as LenCtrlMBartConfig,
    LenCtrlMT5Config as LenCtrlMT5Config,
    LenCtrlPegasusConfig as LenCtrlPegasusConfig,
    LenCtrlSeq2SeqLMConfig as LenCtrlSeq2SeqLMConfig,
    LenCtrlT5Config as LenCtrlT5Config,
    LenCtrlUMT5Config as LenCtrlUMT5Config,
)
from .character_costs import Unit as Unit
from .conversion import (
    add_length_control as add_length_control,
    remove_length_control as remove_length_control,
)
from .evaluation.metrics import length_metrics as length_metrics
from .evaluation.report import length_report as length_report
from .inference.fit import fit as fit, fit_async as fit_async
from .inference.fitted import Fitted as Fitted
from .inference.loading import pipeline as pipeline
from .inference.options import GeneratedText as GeneratedText
from .inference.pipeline import LengthControlledGenerationPipeline as LengthControlledGenerationPipeline
from .inference.ranking import rerank as rerank
from .length_constraint import LengthConstraintLogitsProcessor as LengthConstraintLogitsProcessor
from .length_predictor import (
    LengthPredictor as LengthPredictor,
    LengthPredictorConfig as LengthPredictorConfig,
    load_predictor as load_predictor,
)
from .length_tokens import LengthTokens as LengthTokens
from .length_units import (
    UnitTable as UnitTable,
    count_units as count_units,
    save_unit_table as save_unit_table,
)
from .modeling_lenctrl import (
    LenCtrlBartForConditionalGeneration as LenCtrlBartForConditionalGeneration,
    LenCtrlBartModel as LenCtrlBartModel,
    LenCtrlM2M100ForConditionalGeneration as LenCtrlM2M100ForConditionalGeneration,
    LenCtrlM2M100Model as LenCtrlM2M100Model,
    LenCtrlMarianModel as LenCtrlMarianModel,
    LenCtrlMarianMTModel as LenCtrlMarianMTModel,
    LenCtrlMBartForConditionalGeneration as LenCtrlMBartForConditionalGeneration,
    LenCtrlMBartModel as LenCtrlMBartModel,
    LenCtrlMT5ForConditionalGeneration as LenCtrlMT5ForConditionalGeneration,
    LenCtrlMT5Model as LenCtrlMT5Model,
    LenCtrlPegasusForConditionalGeneration as LenCtrlPegasusForConditionalGeneration,
    LenCtrlPegasusModel as LenCtrlPegasusModel,
    LenCtrlT5ForConditionalGeneration as LenCtrlT5ForConditionalGeneration,
    LenCtrlT5Model as LenCtrlT5Model,
    LenCtrlUMT5ForConditionalGeneration as LenCtrlUMT5ForConditionalGeneration,
    LenCtrlUMT5Model as LenCtrlUMT5Model,
)
from .modeling_lenctrl_causal import LenCtrlForCausalLM as LenCtrlForCausalLM
from .modeling_lenctrl_seq2seq import LenCtrlForSeq2SeqLM as LenCtrlForSeq2SeqLM
from .training.collator import DataCollatorForLengthControl as DataCollatorForLengthControl
from .training.fitted_cost import fit_cost as fit_cost, load_cost as load_cost
from .training.reward import length_reward as length_reward
from .training.tokenizer import train_marian_tokenizer as train_marian_tokenizer
from .training.trainer import LengthControlTrainer as LengthControlTrainer

__version__: str
