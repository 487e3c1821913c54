// The order of the list.

/** The order after a click: numbers and times begin with the largest, words with the first. */
export function nextSort(sort: string, key: string, numeric: boolean): string {
  if (sort === key) return `-${key}`;
  if (sort === `-${key}`) return key;
  return numeric && key !== "eta" ? `-${key}` : key;
}
