// Requests to our own server. Everything is below the folder that this script came from: .../static/main.js.

/** A refusal of the server, with its words. */
export class Refused extends Error {
  readonly status: number;
  constructor(status: number, detail: string) {
    super(detail);
    this.status = status;
  }
}

const base = new URL("../api", import.meta.url).href;

/** The address of a document. `path` begins with "/" and is encoded already. */
export function address(path: string, query: Record<string, string | number | null | undefined> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const text = words.toString();
  return base + path + (text ? `?${text}` : "");
}

export interface Answer<Document> {
  document: Document;
  etag: string | null;
}

/** The document, or null where it is still the one with this etag. Throws Refused, or TypeError without a network. */
export async function get<Document>(
  url: string,
  etag: string | null,
  signal: AbortSignal,
): Promise<Answer<Document> | null> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (etag) headers["If-None-Match"] = etag;
  const response = await fetch(url, { headers, signal, cache: "no-store", credentials: "same-origin" });
  if (response.status === 304) return null;
  if (!response.ok) throw new Refused(response.status, await detail(response));
  return { document: (await response.json()) as Document, etag: response.headers.get("ETag") };
}

/** Asks for something to be done. Gives the server's words on what happens next. */
export async function post(path: string, body: object): Promise<string> {
  const response = await fetch(address(path), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Elastic-Request": "1" },
    body: JSON.stringify(body),
    credentials: "same-origin",
  });
  if (!response.ok) throw new Refused(response.status, await detail(response));
  return ((await response.json()) as { text: string }).text;
}

async function detail(response: Response): Promise<string> {
  const words: unknown = await response.json().then(
    (body: { detail?: unknown }) => body.detail,
    () => null,
  );
  if (typeof words === "string") return words;
  return meanings[response.status] ?? `The server answers ${response.status} ${response.statusText}`.trim();
}

const meanings: Record<number, string> = {
  401: "You are not logged in, or no longer. Log in again, or open the address with its token again.",
  403: "You may not see this.",
  404: "There is no such run here.",
};
