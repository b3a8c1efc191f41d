/* Encoder, decoder and beam search over an exported model. `run` hides which onnxruntime it is. */

import { Lengths } from "./lengths.js";

const DEAD = -1e9; // the score of a beam that is none

export class Translator {
  /**
   * ort: onnxruntime-web or onnxruntime-node; encoder, decoder: its sessions; tokenizer: of @huggingface/tokenizers;
   * rules, generation, config: lenctrl.json, generation_config.json and config.json.
   */
  constructor({ ort, encoder, decoder, tokenizer, rules, generation, config }) {
    Object.assign(this, { ort, encoder, decoder, tokenizer, generation, config });
    this.lengths = new Lengths(rules);
    this.cacheNames = decoder.inputNames.filter((name) => name.startsWith("past_key_values."));
  }

  /**
   * The best text, or null where `await stopped()` became true. length: units that the model plans for, 0 for none;
   * target: null or `{constraint, low, high}`, see `Lengths.allowed`.
   */
  async translate(text, { length = 0, target = null, beams = 4, stopped = async () => false } = {}) {
    const ids = this.tokenizer.encode(text).ids.slice(0, this.config.max_position_embeddings);
    const source = this.ints(ids, [1, ids.length]);
    const mask = this.ints(ids.map(() => 1), [1, ids.length]);
    const feeds = { input_ids: source, attention_mask: mask, length: this.ints([length], [1]) };
    const { last_hidden_state: states } = await this.run(this.encoder, feeds);
    const limit = target || length ? this.lengths.room(target ? target.high : length) : this.longest();
    const best = await this.search({ states, mask, length, target, beams, limit, stopped });
    if (best === null) return null;
    const written = best.filter((id) => !this.lengths.isEnd.has(id) && !this.lengths.isSilent.has(id));
    return { text: this.tokenizer.decode(written).trim(), units: this.lengths.after(best).units };
  }

  longest() {
    const settings = this.generation;
    return settings.max_new_tokens ? settings.max_new_tokens + 1 : settings.max_length ?? 256;
  }

  async search({ states, mask, length, target, beams, limit, stopped }) {
    const { start } = this.lengths;
    const penalty = this.generation.length_penalty ?? 1;
    let running = [{ ids: [...start], score: 0, written: this.lengths.after(start), parent: 0 }];
    let finished = []; // best first
    let cache = this.emptyCache();
    for (let positions = start.length; positions < limit && running.length > 0; positions++) {
      if (await stopped()) return null;
      const first = positions === start.length;
      const { logits, present } = await this.step(running, states, mask, length, cache, first);
      const scores = running.map((beam, row) => this.scores(logits, row, beam, positions, target, limit));
      const found = topOf(scores, (1 + this.lengths.end.length) * beams);
      const next = [];
      found.forEach(({ row, id, score }, rank) => {
        const beam = running[row];
        const grown = { ids: [...beam.ids, id], score, written: this.lengths.after([id], beam.written), parent: row };
        const ends = this.lengths.isEnd.has(id) || positions + 1 === limit;
        if (!ends && next.length < beams) next.push(grown);
        const length = positions + 1 - start.length;
        if (ends && rank < beams) finished.push({ ids: grown.ids, score: score / length ** penalty });
      });
      finished = finished.sort((a, b) => b.score - a.score).slice(0, beams);
      running = next;
      cache = this.reordered(present, running, first);
      const steps = positions + 1 - start.length;
      const hope = running.length > 0 ? running[0].score / steps ** penalty : -Infinity;
      if (finished.length === beams && finished.at(-1).score >= hope) break;
    }
    return finished.length > 0 ? finished[0].ids : running[0].ids;
  }

  /** Log-probabilities of what may follow a beam, with the beam's own. */
  scores(logits, row, beam, positions, target, limit) {
    const size = logits.dims[2];
    const at = (row * logits.dims[1] + logits.dims[1] - 1) * size; // the last position
    const scores = logits.data.slice(at, at + size);
    let highest = -Infinity;
    for (const value of scores) if (value > highest) highest = value;
    let sum = 0;
    for (const value of scores) sum += Math.exp(value - highest);
    const shift = beam.score - highest - Math.log(sum);
    for (let i = 0; i < size; i++) scores[i] += shift;
    if (target !== null) this.lengths.mask(scores, beam.written, positions, target, limit);
    return scores;
  }

  /** One run of the decoder: all ids at the first step, the last one afterwards, for each beam. */
  async step(running, states, mask, length, cache, first) {
    const rows = running.length;
    const seen = running.map((beam) => (first ? beam.ids : beam.ids.slice(-1)));
    const progress = running.map((beam) => {
      if (!first) return [beam.written.units];
      return beam.ids.map((_, i) => this.lengths.after(beam.ids.slice(0, i + 1)).units);
    });
    const width = states.dims[2];
    // the cache holds what the decoder made of the encoder's states, so that they are given once
    const given = first ? states : new this.ort.Tensor("float32", new Float32Array(0), [rows, 0, width]);
    const feeds = {
      encoder_attention_mask: this.ints(running.flatMap(() => [...mask.data]), [rows, mask.dims[1]]),
      input_ids: this.ints(seen.flat(), [rows, seen[0].length]),
      encoder_hidden_states: given,
      length: this.ints(running.map(() => length), [rows]),
      progress: this.ints(progress.flat(), [rows, seen[0].length]),
      ...cache,
    };
    const outputs = await this.run(this.decoder, feeds);
    const present = this.cacheNames.map((name) => [name, outputs[name.replace("past_key_values", "present")]]);
    return { logits: outputs.logits, present };
  }

  emptyCache() {
    const heads = this.config.decoder_attention_heads ?? this.config.num_heads;
    const width = this.config.d_kv ?? this.config.d_model / heads;
    const empty = () => new this.ort.Tensor("float32", new Float32Array(0), [1, heads, 0, width]);
    return Object.fromEntries(this.cacheNames.map((name) => [name, empty()]));
  }

  /** The cache for the beams that go on; all share the encoder's part, which the first step makes for one row. */
  reordered(present, running, first) {
    const rows = running.map((beam) => beam.parent);
    const inOrder = rows.every((row, i) => row === i) && rows.length === present[0][1].dims[0];
    return Object.fromEntries(
      present.map(([name, tensor]) => {
        const shared = name.includes(".encoder.") && !first && rows.length === tensor.dims[0];
        return [name, inOrder || shared ? tensor : this.rowsOf(tensor, rows)];
      }),
    );
  }

  rowsOf(tensor, rows) {
    const size = tensor.data.length / tensor.dims[0];
    const data = new Float32Array(rows.length * size);
    rows.forEach((row, i) => data.set(tensor.data.subarray(row * size, (row + 1) * size), i * size));
    return new this.ort.Tensor("float32", data, [rows.length, ...tensor.dims.slice(1)]);
  }

  /** A graph has no input that its model does not read. */
  run(session, feeds) {
    return session.run(Object.fromEntries(session.inputNames.map((name) => [name, feeds[name]])));
  }

  ints(values, dims) {
    return new this.ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
  }
}

/** The highest of several rows of scores, best first: `[{row, id, score}]`; fewer where no more is possible. */
function topOf(rows, count) {
  const found = [];
  rows.forEach((scores, row) => {
    for (let id = 0; id < scores.length; id++) {
      const score = scores[id];
      if (score <= DEAD || (found.length === count && score <= found[count - 1].score)) continue;
      let place = found.length;
      while (place > 0 && found[place - 1].score < score) place--;
      found.splice(place, 0, { row, id, score });
      if (found.length > count) found.pop();
    }
  });
  return found;
}
