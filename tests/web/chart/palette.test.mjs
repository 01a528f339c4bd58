import assert from "node:assert/strict";
import { test } from "node:test";

import { color, PALETTES } from "../../../web/js/lib/chart/chart.mjs";

const GROUNDS = { dark: "#222222", light: "#ffffff" };
/** A difference that is plain to see; 1 is one a trained eye just sees. */
const PLAIN = 20;
/** WCAG 2: what graphics need beside what is next to them. */
const LEAST_CONTRAST = 3;

/** How eyes see linear light: as most do, and without red, green or blue cones (Machado, Oliveira, Fernandes 2009). */
const EYES = {
  most: [1, 0, 0, 0, 1, 0, 0, 0, 1],
  "no red": [
    0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998,
  ],
  "no green": [
    0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881,
  ],
  "no blue": [
    1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039,
  ],
};

const times = (matrix, [x, y, z]) =>
  [0, 3, 6].map((row) => matrix[row] * x + matrix[row + 1] * y + matrix[row + 2] * z);

/** sRGB to linear light. */
const light = (hex) =>
  [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });

const TO_XYZ = [0.4124, 0.3576, 0.1805, 0.2126, 0.7152, 0.0722, 0.0193, 0.1192, 0.9505];

/** CIE L*a*b* of what an eye sees. */
function lab(hex, eye) {
  const seen = times(eye, light(hex)).map((part) => Math.min(1, Math.max(0, part)));
  const [x, y, z] = times(TO_XYZ, seen).map((part, index) => {
    const share = part / [0.9505, 1, 1.089][index];
    return share > 0.008856 ? Math.cbrt(share) : 7.787 * share + 16 / 116;
  });
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

const apart = (one, other, eye) =>
  Math.hypot(...lab(one, eye).map((part, index) => part - lab(other, eye)[index]));

function contrast(one, other) {
  const [low, high] = [one, other].map((hex) => times(TO_XYZ, light(hex))[1]).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

test("the measure itself: violet is a blue to eyes that see no red, black and white are 100 apart", () => {
  assert.ok(Math.abs(apart("#000000", "#ffffff", EYES.most) - 100) < 0.1);
  assert.ok(Math.abs(contrast("#000000", "#ffffff") - 21) < 0.01);
  assert.ok(apart("#6cb6ff", "#d2a8ff", EYES.most) > 30);
  assert.ok(apart("#6cb6ff", "#d2a8ff", EYES["no red"]) < 1);
});

test("any two curves are plainly different to every kind of eye", () => {
  for (const palette of Object.values(PALETTES)) {
    for (const [name, eye] of Object.entries(EYES)) {
      palette.forEach((one, index) => {
        for (const other of palette.slice(0, index)) {
          const distance = apart(one, other, eye);
          assert.ok(distance > PLAIN, `${one} and ${other}, ${name}: ${distance}`);
        }
      });
    }
  }
});

test("every curve stands out from its ground", () => {
  for (const [ground, palette] of Object.entries(PALETTES)) {
    for (const ink of palette) {
      assert.ok(contrast(ink, GROUNDS[ground]) >= LEAST_CONTRAST, `${ink} on ${ground}`);
    }
  }
});

test("a ninth curve begins anew", () => {
  assert.equal(color(8, true), color(0, true));
  assert.notEqual(color(0, true), color(0, false));
});
