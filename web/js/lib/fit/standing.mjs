// @ts-check
/** Texts about an existing run with the same name: what the Run button will do. Pure. */

import { inOneText, t } from "../page/words.mjs";

/**
 * The server's response (nodes/routes/standing.py). `action` assumes the same clips; start and refuse hold for any clips.
 * @typedef {{ setting: string, there: string | number | boolean | null, here: string | number | boolean | null }} Change
 * @typedef {{ id: string, state: string, step: number, steps: number, action: string, new: string, until: number | null,
 *   changes: Change[] }} Standing
 * @typedef {(setting: string) => string} Titles returns a setting's label
 */

/** Maximum number of listed changes. */
const MOST = 3;

/** @param {Standing} run @param {Titles} title @returns {string} */
export function standingText(run, title) {
  const said = [stateOf(run)];
  if (run.changes.length) said.push(t("It has other settings: {changes}.", changesOf(run, title)));
  return inOneText([...said, ...coming(run, title)]);
}

/** @param {Standing} run */
function stateOf(run) {
  const values = { run: run.id, step: run.step, steps: run.steps };
  switch (run.state) {
    case "done":
      return t("{run} is a finished run (step {step} of {steps}).", values);
    case "failed":
      return t("{run} is a run that failed (step {step} of {steps}).", values);
    default:
      return t("{run} is a run that was stopped (step {step} of {steps}).", values);
  }
}

/** @param {Standing} run @param {Titles} title @returns {string[]} */
function coming(run, title) {
  const resume = title("resume");
  switch (run.action) {
    case "refuse":
      return [t("Run is refused, because {resume} is set to require.", { resume })];
    case "start":
      return run.changes.length
        ? [t("Run starts a new one, {run}.", { run: run.new })]
        : [
            t("Run starts a new one, {run}, because {resume} is set to new.", {
              run: run.new,
              resume,
            }),
          ];
    default:
      return [continuing(run), others(run, resume)];
  }
}

/** @param {Standing} run */
function continuing({ action, until }) {
  if (action === "done") return t("With the same clips, Run trains nothing more.");
  return until === null
    ? t("With the same clips, Run resumes it.")
    : t("With the same clips, Run resumes it up to step {step}.", { step: until });
}

/** @param {Standing} run @param {string} resume */
function others(run, resume) {
  return run.new
    ? t("With other clips, Run starts {run}.", { run: run.new })
    : t("With other clips, Run is refused, because {resume} is set to require.", { resume });
}

/** @param {Standing} run @param {Titles} title */
function changesOf({ changes }, title) {
  const named = changes.slice(0, MOST).map(({ setting, there, here }) => {
    const name = title(setting);
    return there === null || here === null
      ? name
      : t("{name} is {there} in that run and {here} here", {
          name,
          there: word(there),
          here: word(here),
        });
  });
  const left = changes.length - named.length;
  return { changes: [...named, ...(left ? [t("{n} more", { n: left })] : [])].join("; ") };
}

/** A value as its widget shows it: 0.0001, not 0.00010000000000000001. @param {string | number | boolean} value */
function word(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}
