"""Run an exported model in ONNX Runtime: `generate` with lengths, constraints, beams and sampling."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import GenerationMode
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..cache import CACHE, takes_cache
from ..generation import LengthControlledGeneration
from ..length_signal import required_length
from ..length_units import UnitTable
from .onnx_export import DECODER, ENCODER, FOLDER, import_onnxruntime
from .rules_file import read_table


class _Session:
    """A session of ONNX Runtime, which is called with named tensors and returns named tensors, without copies."""

    def __init__(self, path: Path, threads: int):
        library = import_onnxruntime()
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {each.name: each.shape for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]

    def __call__(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        # a graph has only inputs that its model reads; most encoders, for example, do not read the length
        feeds = {name: tensors[name].contiguous().numpy() for name in self.inputs}
        return dict(zip(self.outputs, map(torch.from_numpy, self.session.run(None, feeds)), strict=True))


class _Encoder(nn.Module):
    """The encoder's graph as a module with the interface that `generate` expects."""

    main_input_name = "input_ids"

    def __init__(self, session: _Session):
        super().__init__()
        self.session = session

    def forward(self, input_ids=None, attention_mask=None, length=None, **kwargs):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        length = torch.zeros_like(input_ids[:, 0]) if length is None else length
        outputs = self.session(input_ids=input_ids, attention_mask=mask, length=length)
        return BaseModelOutput(last_hidden_state=outputs["last_hidden_state"])


class _Past:
    """
    The decoder's cache during generation. `tensors` maps names of graph inputs to tensors
    `(rows, heads, positions, width)`.
    """

    is_compileable = False

    def __init__(self, inputs: dict[str, list], rows: int):
        shapes = {name: shape for name, shape in inputs.items() if name.startswith("past_key_values.")}
        self.tensors = {name: torch.zeros(rows, shape[1], 0, shape[3]) for name, shape in shapes.items()}
        self.first = torch.arange(rows)  # (rows,) for each row, the row of the first step that it continues

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of cached decoder positions."""
        return next(tensor.shape[2] for name, tensor in self.tensors.items() if ".decoder." in name)

    def update(self, outputs: dict[str, torch.Tensor]) -> None:
        """Replace the tensors with the new cache from the outputs of a step."""
        self.tensors = {name: outputs[name.replace("past_key_values", "present")] for name in self.tensors}

    def activate_past_recording(self) -> None:
        """Do nothing, because all positions are kept. Assisted generation calls this method."""

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` decoder positions, in place. `tokens_to_remove` is at most 0."""
        for name, tensor in self.tensors.items():
            if ".decoder." in name:
                self.tensors[name] = tensor[:, :, : tensor.shape[2] + tokens_to_remove]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """
        Select the rows `beam_idx (new_rows,)` of the cache, in place. The encoder's part of the cache depends only on
        the source. If each row keeps its source, as in most steps of beam search, this part is not copied. If the
        number of rows of a source changes, as in `SearchByLength`, the rows of this part are selected too.
        """
        first = self.first[beam_idx]  # (new_rows,)
        same, self.first = torch.equal(first, self.first), first
        for name, tensor in self.tensors.items():
            if ".decoder." in name or not same:
                self.tensors[name] = tensor.index_select(0, beam_idx)


class OnnxModel(LengthControlledGeneration, PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """
    An exported model on a CPU, with `generate` of transformers: `OnnxModel(folder).generate(**inputs, length=75,
    length_constraint="exact", num_beams=4)`. The pipeline accepts such a model.

    Args:
        folder (`str` or `Path`): The output folder of `lenctrl export`.
        threads (`int`, *optional*, defaults to 0): Number of threads; 0 lets ONNX Runtime choose.

    Raises:
        `ImportError`: if onnxruntime is not installed.

    Example:

        model = OnnxModel("runs/onnx")
        tokenizer = AutoTokenizer.from_pretrained("runs/onnx")
        ids = model.generate(**tokenizer("Wo ist die Apotheke?", return_tensors="pt"), length=24)
    """

    main_input_name = "input_ids"

    def __init__(self, folder: str | Path, threads: int = 0):
        config = AutoConfig.from_pretrained(folder)
        super().__init__(config)
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.table = read_table(folder)
        self.encoder = _Encoder(_Session(Path(folder, FOLDER, ENCODER), threads))
        self.step = _Session(Path(folder, FOLDER, DECODER), threads)
        self.eval()

    @property
    def unit_table(self) -> UnitTable:
        """Return the unit table, which was read from `lenctrl.json`."""
        return self.table

    @property
    def device(self) -> torch.device:
        """Return the CPU, because the model has no parameters with a device."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of logits and cache."""
        return torch.float32

    def get_encoder(self, modality=None):
        """Return the encoder's graph."""
        return self.encoder

    def get_output_embeddings(self):
        """
        Return a layer without data that has the shape of the head. The pipeline compares this shape with the
        tokenizer's vocabulary.
        """
        return nn.Linear(self.config.d_model, self.table.weights.shape[1], bias=False, device="meta")

    @takes_cache
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        encoder_outputs=None,
        cache=None,
        length=None,
        progress=None,
        labels=None,
        use_cache=None,
        **kwargs,
    ) -> Any:
        """
        Compute the logits `(batch_size, sequence_length, vocab_size)` of one step, or of all positions of `labels`,
        and the updated cache, unless `use_cache` is `False`. `length (batch_size,)` are the planned lengths; by
        default they are counted from `labels`, or else they are `config.length`. `progress (batch_size,
        sequence_length)` are the units so far at each decoder position; by default they are counted from
        `decoder_input_ids`. Raise `ValueError` if `config.counts_progress` is true, `progress` is missing and the
        cache is filled, because `decoder_input_ids` then has only the last ids.
        """
        if length is None and labels is not None:
            length = self.table.progress(labels.masked_fill(labels == -100, self.config.pad_token_id))[:, -1]
        if decoder_input_ids is None:
            start = torch.full_like(labels[:, :1], self.generation_config.decoder_start_token_id)
            before = labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)
            decoder_input_ids = torch.cat([start, before], dim=1)
        length = required_length(length, self.config, decoder_input_ids, self.training)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask=attention_mask, length=length)
        states, rows = encoder_outputs[0], len(decoder_input_ids)
        mask = torch.ones(states.shape[:2], dtype=torch.long) if attention_mask is None else attention_mask
        past: Any = _Past(self.step.inputs, rows) if cache is None else cache
        if progress is None and self.config.counts_progress and past.get_seq_length():
            raise ValueError(
                "progress cannot be counted from the last token of a cached sequence; pass progress=, or call "
                "generate()"
            )
        outputs = self.step(
            encoder_attention_mask=mask,
            input_ids=decoder_input_ids,
            encoder_hidden_states=states,
            length=length,
            progress=self.table.progress(decoder_input_ids) if progress is None else progress,
            **past.tensors,
        )
        past.update(outputs)
        return Seq2SeqLMOutput(logits=outputs["logits"], **{CACHE: None if use_cache is False else past})

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """
        Prepare the inputs of a step, and add `progress`, the units so far. They are counted from all ids of each row
        in `input_ids`, which beam search has already reordered.
        """
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        progress = self.table.progress(input_ids)  # (rows, T)
        return inputs | {"progress": progress[:, -inputs["decoder_input_ids"].shape[1] :]}

    def _prepare_cache_for_generation(
        self, generation_config, model_kwargs, generation_mode, batch_size, *args, **kwargs
    ):
        """Make the cache of assisted generation. Otherwise the first step makes it, when the rows are known."""
        if generation_mode == GenerationMode.ASSISTED_GENERATION:
            model_kwargs[CACHE] = _Past(self.step.inputs, batch_size)
