import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { learn } from "../../../web/js/lib/page/words.mjs";
import { lineOf } from "../../../web/js/lib/run/line.mjs";
import { filled } from "../filled.mjs";

const ROOT = new URL("../../../", import.meta.url);
const read = (place) => JSON.parse(readFileSync(new URL(place, ROOT), "utf8"));
const { events, nodes } = read("tests/nodes/status_lines.json");
const messages = [...events, ...nodes];

/** The line of a message whose text is missing: only what the page itself makes. */
const composed = ({ about, text }) => lineOf({ about, text: about ? "of the server" : text });

/** The page in a language, after the server has said what comes as a text alone. */
function speak(language) {
  const { wanTrainer, wanTrainerServer } = read(`locales/${language}/main.json`);
  learn({ ...wanTrainer, ...wanTrainerServer });
  filled("Resumes after saved step {step} of {steps}.", { step: "8", steps: "40" });
}

test("in English the page says to the letter what the server says", () => {
  assert.deepEqual(
    messages.map(composed),
    messages.map(({ text }) => text),
  );
});

test("in Spanish the page says what happens in Spanish", () => {
  speak("es");
  try {
    assert.deepEqual(messages.map(composed), [
      "iniciando el motor",
      "cargando pesos 50/300",
      "entrenando",
      "midiendo la pérdida de evaluación",
      "generando una vista previa 3/20",
      "guardando",
      "midiendo la precisión, pasada 2/9",
      "paso 3/43   pérdida 0.1250   2.50 s/it   quedan 1:40",
      "paso 8: pérdida de evaluación 0.0625",
      "paso 8: pérdida de evaluación nan",
      "paso 8: pérdida de evaluación 0.0625 en clips de entrenamiento",
      "paso 8: pérdida de evaluación 0.0625",
      "guardado el paso 8",
      "vista previa del paso 8",
      "paso 9 omitido: los gradientes no son finitos",
      "detenido en el paso 9",
      "Continúa después del paso guardado 8 de 40.",
      "detenido: paso 8 de 40",
      "comprobando qué hay en la caché",
      "codificando 3/7: a.mp4",
      "8 codificados, 3 reutilizados",
      "iniciando",
      "clip 3 de 12",
    ]);
  } finally {
    learn({});
  }
});

for (const language of ["zh", "ja", "ko"]) {
  test(`no line stays English in ${language}`, () => {
    speak(language);
    try {
      for (const message of messages) {
        const bare = lineOf(message).replace(/a\.mp4|s\/it|nan/g, "");
        assert.doesNotMatch(bare, /[a-z]/i, message.text);
      }
    } finally {
      learn({});
    }
  });
}

test("what the page does not know it shows as the server's text", () => {
  const text = "melting 3/7";
  for (const about of [undefined, null, {}, { kind: "melt" }, { kind: "stage", stage: "melt" }]) {
    assert.equal(lineOf({ text, about }), text);
  }
});

test("a loss that is no number is said as such", () => {
  const [step] = messages.filter(({ about }) => about?.kind === "step");
  assert.match(lineOf({ ...step, about: { ...step.about, loss: null } }), /loss nan/);
});
