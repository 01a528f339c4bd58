import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
  below,
  densities,
  kept,
  normalBelow,
  quantile,
  SAMPLINGS,
  share,
} from "../../../web/js/lib/cards/density.mjs";

// Made from the engine's own draws (tests/wan_core/test_timestep_golden.py), 200,000 points on a grid.
const golden = JSON.parse(
  readFileSync(new URL("../../fixtures/timestep_shares.json", import.meta.url), "utf8"),
);

const near = (found, wanted, error, what) =>
  assert.ok(Math.abs(found - wanted) <= error, `${what}: ${found}, not ${wanted}`);

for (const { kept: share_kept, shares, ...draw } of golden.cases) {
  const { sampling, shift, scale, low, high } = draw;
  test(`${sampling} ${shift} ${scale} in ${low} to ${high} is what the engine draws`, () => {
    near(kept(draw), share_kept, 2e-5, "kept");
    // Where few draws are kept, a point of the grid is a larger part of them.
    const error = 2e-5 / share_kept;
    shares.forEach((wanted, index) => {
      const timestep = index * golden.every;
      near(share(draw, 0, timestep / 1000), wanted, error, `up to ${timestep}`);
    });
  });
}

test("every sampling the engine knows is compared", () => {
  assert.deepEqual(
    [...new Set(golden.cases.map((one) => one.sampling))].sort(),
    [...SAMPLINGS].sort(),
  );
});

test("the normal distribution is exact far out", () => {
  // Known to many digits.
  near(normalBelow(0), 0.5, 0, "0");
  near(normalBelow(1), 0.8413447460685429, 1e-14, "1");
  near(normalBelow(-3), 0.0013498980316300933, 1e-14, "-3");
  near(normalBelow(6), 1 - 9.865876450376981e-10, 1e-14, "6");
  assert.equal(normalBelow(-40), 0);
  assert.equal(normalBelow(40), 1);
});

test("quantiles are where the shares say", () => {
  for (const { kept: _, shares, ...draw } of golden.cases) {
    for (const part of [0.01, 0.25, 0.5, 0.75, 0.99]) {
      near(share(draw, 0, quantile(draw, part)), part, 1e-9, JSON.stringify(draw));
    }
  }
  // The middle of a logistic-normal draw with shift 3 is sigmoid(ln 3).
  const usual = { sampling: "shift", shift: 3, scale: 1, low: 0, high: 1 };
  near(quantile(usual, 0.5), 0.75, 1e-12, "middle");
});

test("densities have a mean of one, and nothing outside the range", () => {
  for (const { kept: _, shares, ...draw } of golden.cases) {
    const found = densities(draw, 100);
    near(found.reduce((sum, one) => sum + one, 0) / 100, 1, 1e-9, JSON.stringify(draw));
    const outside = found.filter(
      (_one, bin) => (bin + 1) / 100 <= draw.low || bin / 100 >= draw.high,
    );
    assert.ok(outside.every((one) => one === 0));
  }
  const even = { sampling: "uniform", shift: 1, scale: 1, low: 0, high: 1 };
  for (const one of densities(even, 10)) near(one, 1, 1e-12, "even");
});

test("outside of 0 to 1 there is nothing", () => {
  const draw = { sampling: "shift", shift: 3, scale: 1, low: 0, high: 1 };
  assert.deepEqual([below(draw, -1), below(draw, 0), below(draw, 1), below(draw, 2)], [0, 0, 1, 1]);
});
