/* The page: asks the worker for a text whenever something changes; the last request wins. */

const find = (id) => document.getElementById(id);
const [source, slider, constraint] = ["source", "length", "constraint"].map(find);
const worker = new Worker("worker.js", { type: "module" });
let number = 0;
let asked = null; // what the last request demands

function targetOf(kind, length) {
  if (kind === "none") return null;
  const share = kind === "range" ? Math.max(1, Math.floor(length / 10)) : 0;
  const low = Math.max(1, length - share);
  return { constraint: kind === "max" ? "max" : "exact", low, high: length + share };
}

function ask() {
  const length = Number(slider.value);
  find("chosen").textContent = length;
  const text = source.value.trim();
  const target = targetOf(constraint.value, length);
  asked = { length, target };
  number += 1;
  document.body.dataset.asked = number;
  find("status").textContent = text ? "…" : "Type a sentence.";
  if (text) worker.postMessage({ number, text, options: { length, target } });
}

function isMet(units) {
  const { length, target } = asked;
  if (target === null) return units === length;
  return units <= target.high && (target.constraint === "max" || units >= target.low);
}

worker.onerror = (event) => (find("status").textContent = event.message);
worker.onmessage = ({ data }) => {
  if (data.fault) {
    find("status").textContent = data.fault;
  } else if (data.ready) {
    find("unit").textContent = `${data.unit}s`;
    document.body.dataset.ready = Math.round(performance.now());
    if (data.trained) [slider.min, slider.max] = [data.trained["1%"], data.trained["99%"]];
    ask();
  } else if (data.number === number) {
    find("text").textContent = data.text;
    const { length, target } = asked;
    const window = target && target.low < target.high ? ` (${target.low} to ${target.high})` : "";
    find("count").textContent = `${data.units} of ${length}${window}`;
    find("count").className = isMet(data.units) ? "met" : "missed";
    find("status").textContent = `in ${Math.round(data.milliseconds)} ms`;
    document.body.dataset.first ??= Math.round(performance.now());
    document.body.dataset.shown = data.number;
  }
};
for (const element of [source, slider, constraint]) element.addEventListener("input", ask);
