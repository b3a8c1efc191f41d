/* Loads the model and translates, beside the page, so that the page answers while a text is generated. */

import * as ort from "./vendor/ort.wasm.min.mjs";
import { Tokenizer } from "./vendor/tokenizers.min.mjs";
import { Translator } from "./translate.js";

ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more threads need headers that a page host may not send

let asked = 0; // the number of the last request; earlier ones stop

/** Lets a request in that came while a step ran; a timer would wait four milliseconds. */
const channel = new MessageChannel();
function pause() {
  return new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
}

async function read(name, kind = "json") {
  const answer = await fetch(new URL(`./model/${name}`, import.meta.url));
  if (!answer.ok) throw new Error(`model/${name} is missing; build the page with \`make browser\``);
  return answer[kind]();
}

async function load() {
  const names = ["config", "generation_config", "lenctrl", "tokenizer", "tokenizer_config"];
  const asBuilt = { graphOptimizationLevel: "disabled" }; // build.py has optimized the graphs
  const session = async (bytes) => ort.InferenceSession.create(new Uint8Array(await bytes), asBuilt);
  const graphs = ["encoder_model", "decoder_model_merged"].map((name) => read(`onnx/${name}.onnx`, "arrayBuffer"));
  const [sessions, [config, generation, rules, tokenizer, settings]] = await Promise.all([
    Promise.all(graphs.map(session)),
    Promise.all(names.map((name) => read(`${name}.json`))),
  ]);
  const translator = new Translator({
    ort,
    encoder: sessions[0],
    decoder: sessions[1],
    tokenizer: new Tokenizer(tokenizer, settings),
    rules,
    generation,
    config,
  });
  postMessage({ ready: true, unit: rules.unit, trained: config.trained_lengths });
  return translator;
}

const loading = load();
loading.catch((error) => postMessage({ fault: error.message }));

onmessage = async ({ data: { number, text, options } }) => {
  asked = number;
  try {
    const translator = await loading;
    if (number !== asked) return;
    const start = performance.now();
    const stopped = async () => {
      await pause();
      return number !== asked;
    };
    const result = await translator.translate(text, { ...options, stopped });
    if (result !== null) postMessage({ number, ...result, milliseconds: performance.now() - start });
  } catch (error) {
    postMessage({ number, fault: error.message });
  }
};
