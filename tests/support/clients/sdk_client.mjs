// The TypeScript SDK's client, as a program uses it. `sdk_client.mjs PACKAGES ASKED`: the folder that the SDK is
// installed in; and JSON with `server` (its command or address) and `scripts` by name, the last of which is cancelled when the
// server reports progress. Prints JSON: what came of each.
import { createRequire } from "node:module";

const [packages, asked] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

const { server, scripts } = JSON.parse(asked);
const client = new Client({ name: "a-program", version: "1" });
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const transport = server.url ? new StreamableHTTPClientTransport(new URL(server.url)) : new StdioClientTransport(server);
await client.connect(transport);
const seen = { instructions: client.getInstructions(), tools: (await client.listTools()).tools, progress: {}, results: {} };

const names = Object.keys(scripts);
for (const name of names) {
  const cancelled = new AbortController();
  const notes = (seen.progress[name] = []);
  const onprogress = (note) => {
    notes.push(note);
    if (name === names.at(-1)) cancelled.abort("enough");
  };
  try {
    const call = { name: "run_python", arguments: { code: scripts[name] } };
    seen.results[name] = await client.callTool(call, undefined, { onprogress, signal: cancelled.signal });
  } catch (error) {
    seen.results[name] = { thrown: String(error) };
  }
}
console.log(JSON.stringify(seen));
// Until its input ends: the bridge is there to be looked at.
process.stdin.on("end", () => client.close()).resume();
