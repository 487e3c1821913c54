// Lines of the whole log in which a text was found; a click goes there.
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { LogText } from "../api/types.ts";
import { lastWritten, stripped } from "../format/ansi.ts";
import { count } from "../format/numbers.ts";
import { usePollInterval } from "../parts/settings.ts";
import type { Place } from "./choose.ts";
import { marked } from "./lines.ts";

interface Props {
  path: string;
  place: Place;
  text: string;
  /** Whether the log may still grow. */
  live: boolean;
  onPick: (offset: number) => void;
}

const LINE = 400;
/** A search reads the whole log. */
const SELDOM = 20;

export function Matches(props: Props) {
  return props.text ? <Found {...props} /> : null;
}

function Found({ path, place, text, live, onPick }: Props) {
  const url = address(`/${path}/logs/text`, { ...place, offset: -1, limit: 1, q: text });
  const interval = usePollInterval() * SELDOM;
  const polled = usePolled<LogText>(url, live ? interval : null);
  const matches = polled.document?.matches;
  if (!matches) return <p className="el-empty">{polled.trouble ?? "Searching"}</p>;
  return (
    <div className="el-matches" role="region" aria-label="Lines that were found" tabIndex={0}>
      <p className="el-muted" role="status">
        {matches.length === 0 ? `“${text}” is not in this log` : `${count(matches.length, "line")} found`}
      </p>
      {matches.toReversed().map(({ offset, line }) => (
        <button key={offset} type="button" onClick={() => onPick(offset)}>
          {marked(stripped(lastWritten(line)).slice(0, LINE), text).map((part, index) =>
            part.hit ? <mark key={index}>{part.text}</mark> : <span key={index}>{part.text}</span>,
          )}
        </button>
      ))}
    </div>
  );
}
