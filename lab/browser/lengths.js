/*
 * Reads lenctrl.json: counts what is written and says what may follow. docs/onnx.md explains the fields. The rules
 * are those of hf_lenctrl/length_constraint.py; lab/tests/test_browser.py compares the two.
 */

const NEVER = 1e7; // more units than any text has, for the nulls of the file

export class Lengths {
  constructor(rules) {
    if (rules.version !== 2) {
      throw new Error(`lenctrl.json must be of version 2, got ${rules.version}; build the page again`);
    }
    Object.assign(this, rules);
    const known = (row) => row.map((value) => value ?? NEVER);
    this.kinds = rules.classes.map((kind) => ({ ...kind, cost: known(kind.cost) }));
    this.classOf = Uint16Array.from(rules.class_of);
    this.last = rules.last.map(known);
    this.steps = known(rules.steps);
    this.best = rules.best.map((row) => row.map((value) => value ?? -NEVER));
    this.mostSteps = rules.most_steps;
    const cost = this.kinds.flatMap((kind) => kind.cost).filter((value) => value < NEVER);
    this.dearest = Math.max(0, ...cost, ...this.last.flat().filter((value) => value < NEVER));
    this.isEnd = new Set(rules.end);
    this.isSilent = new Set(rules.silent);
    const writing = rules.class_of.filter((_, id) => !this.isEnd.has(id) && !this.isSilent.has(id));
    const writes = new Set(writing); // classes with an entry that is neither an end nor silent
    this.kinds.forEach((kind, i) => (kind.writes = writes.has(i)));
  }

  /** Units of a text of ids, and the state that it ends in; `from` is that of the text before it. */
  after(ids, from = { units: 0, state: 0 }) {
    let { units, state } = from;
    for (const id of ids) {
      const kind = this.kinds[this.classOf[id]];
      const weight = kind.units[state];
      units += weight < 0 ? ~weight : weight;
      state = kind.next[state];
    }
    return { units, state };
  }

  /** Positions for a text of so many units, with those of the start. */
  room(units) {
    const room = Math.ceil(this.limit.per_unit * units) + this.start.length + this.limit.more;
    return this.limit.positions === null ? room : Math.min(room, this.limit.positions + 1);
  }

  /** The most units, up to a number, that can follow a state; see `Rules._most`. */
  most(state, number) {
    const row = this.best[state];
    const first = row.length - this.period;
    const inside = number >= row.length ? first + ((number - first) % this.period) : number;
    return row[inside] + (this.grows[state] ? number - inside : 0);
  }

  /**
   * What may follow a text: `{kinds, end}`, whether the entries of each class may, and each end. What writes nothing
   * may not; `start` has what stands before a text.
   *
   * written: `after(ids)`; positions: ids so far; target: `{constraint: "exact" | "max", low, high}` in units;
   * limit: positions that the whole text may have, with its end.
   */
  allowed(written, positions, target, limit) {
    const { state } = written;
    const remaining = target.high - written.units;
    const fits = this.fits(state, remaining, target);
    let kinds = fits.kinds;
    const left = limit - positions - 2; // after this entry, before the end
    const within = this.kinds.map((kind) => left >= this.steps[kind.next[state]]);
    if (left < this.mostSteps) kinds = kinds.map((fit, i) => fit && within[i]);
    if (target.constraint === "exact") {
      const missing = remaining - (target.high - target.low);
      if ((left - this.mostSteps) * this.reach < this.pace * missing) {
        const least = this.pace * missing - left * this.reach;
        const steered = kinds.map((fit, i) => fit && this.kinds[i].gain[state] >= least);
        if (steered.some(Boolean) || fits.end.some(Boolean)) kinds = steered;
      }
    }
    if (kinds.some(Boolean) || fits.end.some(Boolean)) return { kinds, end: fits.end };
    const ends = this.last[state].some((value) => value < NEVER);
    kinds = ends ? kinds : fits.kinds.map((fit, i) => fit && within[i]); // what completes a character
    return { kinds, end: this.end.map(() => !kinds.some(Boolean)) };
  }

  fits(state, remaining, { constraint, low, high }) {
    const last = this.last[state];
    if (constraint === "max") {
      const room = Math.min(Math.max(remaining, 0), this.dearest + 1);
      const kinds = this.kinds.map((kind) => kind.writes && room >= kind.cost[state]);
      return { kinds, end: last.map((value) => room >= value) };
    }
    const room = Math.max(remaining, 0);
    const most = this.most(state, room);
    const least = Math.max(Math.min(most, room - (high - low)), 0);
    const leads = (total) => most >= 0 && total >= least && total <= room;
    const kinds = this.kinds.map((kind) => {
      const units = kind.units[state];
      if (!kind.writes || kind.cost[state] >= NEVER || units > room) return false;
      return leads(this.most(kind.next[state], room - units) + units);
    });
    return { kinds, end: last.map(leads) };
  }

  /** Set the scores `(vocab_size)` of what may not follow to -Infinity, in place. */
  mask(scores, written, positions, target, limit) {
    const { kinds, end } = this.allowed(written, positions, target, limit);
    let least = -Infinity;
    if (target.high <= written.units && end.some(Boolean)) {
      // the model's best entry would add a unit: end, and do not add what counts nothing
      const best = scores.reduce((at, score, id) => (score > scores[at] ? id : at), 0);
      if (this.isEnd.has(best) ? !end[this.end.indexOf(best)] : !kinds[this.classOf[best]]) least = scores[best] + Math.log(0.05);
    }
    const ends = this.end.map((id, i) => (end[i] ? scores[id] : -Infinity));
    for (let id = 0; id < scores.length; id++) if (!kinds[this.classOf[id]] || scores[id] < least) scores[id] = -Infinity;
    for (const id of this.silent) scores[id] = -Infinity;
    this.end.forEach((id, i) => (scores[id] = ends[i]));
  }
}
