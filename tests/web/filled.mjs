import { learnSentences } from "../../web/js/lib/page/server_sentences.mjs";

/** The text of a sentence as the server makes it; the page knows its template and values. */
export function filled(template, values = {}) {
  const text = template.replace(/\{(\w+)\}/g, (hole, name) =>
    name in values ? [values[name]].flat().join("; ") : hole,
  );
  learnSentences({ [text]: { template, values } });
  return text;
}

/** Why a run ended, as `failure` of wan_core/errors.py makes it. */
export function failure(what, { helps = [], ifAgain = false, ...also } = {}) {
  const lead = ifAgain ? "If it stops again, what" : "What";
  const remedies = helps.length
    ? { remedies: filled(`${lead} helps most, in this order: {helps}.`, { helps }) }
    : {};
  const { closing, ...parts } = { what, ...also };
  const values = { ...parts, ...remedies, ...(closing ? { closing } : {}) };
  return filled(
    Object.keys(values)
      .map((name) => `{${name}}`)
      .join(" "),
    values,
  );
}

/** A remedy for which saved steps are of no use. */
export const inANewRun = (remedy) => filled("{remedy} (begins a new run)", { remedy });
