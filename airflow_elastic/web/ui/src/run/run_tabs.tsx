// The views of a run, as links: each has an address of its own.
import { Link, useSearchParams } from "react-router-dom";
import { viewLink, VIEWS, type View } from "./where.ts";

export function RunTabs({ view }: { view: View }) {
  const [words] = useSearchParams();
  return (
    <nav className="el-tabs" aria-label="Views of this run">
      {VIEWS.map((name) => (
        <Link
          key={name}
          to={viewLink(words, name)}
          preventScrollReset
          {...(name === view ? { "aria-current": "page" as const } : {})}
        >
          {name.charAt(0).toUpperCase() + name.slice(1)}
        </Link>
      ))}
    </nav>
  );
}
