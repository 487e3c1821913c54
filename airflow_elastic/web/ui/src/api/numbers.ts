// JSON has no NaN and no infinity: the server sends them as these texts, and only in places of numbers.
// A text of a person that reads "NaN" (a name, a reason) must stay a text, so only lists and known places are read.

const special = new Map<unknown, number>([
  ["NaN", Number.NaN],
  ["Infinity", Infinity],
  ["-Infinity", -Infinity],
]);

/** A number out of JSON, which may be one of the texts above; null for anything else. */
export function number(value: unknown): number | null {
  if (typeof value === "number") return value;
  return special.get(value) ?? null;
}

/** The same for a list. */
export function numbers(values: readonly unknown[]): (number | null)[] {
  return values.map(number);
}

/** The same for a mapping, such as the metrics of a step. */
export function numberMap(values: Record<string, unknown> | null | undefined): Record<string, number | null> {
  return Object.fromEntries(Object.entries(values ?? {}).map(([name, value]) => [name, number(value)]));
}
