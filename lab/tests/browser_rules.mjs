// What lab/browser/lengths.js makes of prefixes: reads {rules, cases} from standard input, writes a line for each case.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { Lengths } = await import(pathToFileURL(process.argv[2]));
const { rules, cases } = JSON.parse(readFileSync(0, "utf-8"));
const lengths = new Lengths(rules);
const size = rules.class_of.length;
for (const { ids, target, limit, best } of cases) {
  const written = lengths.after(ids);
  const scores = new Float32Array(size);
  scores[best] = 5;
  lengths.mask(scores, written, ids.length, target, limit);
  const allowed = [...scores.keys()].filter((id) => Number.isFinite(scores[id]));
  console.log(JSON.stringify({ units: written.units, room: lengths.room(target.high), allowed }));
}
