// An authorization server on loopback: npm's oidc-provider, with pages to log in and to consent.
//
//   node authorization_server.mjs PORT OIDC_PROVIDER_FOLDER RESOURCE_SECRET
//
// It says "ready" on standard output, and then one line of JSON for each grant, refusal, registration and revocation.
// `POST /control` with {"ttl", "audience", "token", "format", "rotates"} changes how it behaves; `POST /forget` ends an access token alone.
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [port, folder, resourceSecret] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(path.join(folder, "lib/index.js")));

const issuer = `http://127.0.0.1:${port}`;
const behaviour = { ttl: 3600, audience: null, token: "", format: "opaque", rotates: true };
const say = (event, details = {}) => process.stdout.write(`${JSON.stringify({ event, ...details })}\n`);

// It complains about what suits a test alone: plain HTTP, pages of its own, keys in memory.
console.info = console.warn = () => {};

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "resource",
      client_secret: resourceSecret,
      redirect_uris: [],
      response_types: [],
      grant_types: [],
    },
    {
      client_id: "registered-app",
      client_secret: "secret-of-the-registered-app-4711",
      application_type: "native",
      redirect_uris: ["http://127.0.0.1/callback"],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
    },
    {
      client_id: "machine",
      client_secret: "secret-of-the-machine-client-0815",
      token_endpoint_auth_method: "client_secret_post",
      redirect_uris: [],
      response_types: [],
      grant_types: ["client_credentials"],
      scope: "tools",
    },
  ],
  cookies: { keys: ["for a test"] },
  scopes: ["openid", "offline_access", "tools"],
  // What it would get for a client id metadata document, without a web server of that name.
  fetch: async (url) => {
    if (new URL(url).hostname !== "client.example") throw new Error("there is no such host");
    const document = {
      client_id: "https://client.example/mcp-bridge.json",
      client_name: "mcp-code-bridge",
      application_type: "native",
      redirect_uris: ["http://127.0.0.1/callback"],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
    };
    return new Response(JSON.stringify(document), { headers: { "content-type": "application/json" } });
  },
  findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  ttl: {
    AccessToken: () => behaviour.ttl,
    ClientCredentials: () => behaviour.ttl,
    RefreshToken: 3600,
    Grant: 3600,
    Interaction: 600,
    Session: 3600,
  },
  rotateRefreshToken: () => behaviour.rotates,
  pkce: { required: () => true },
  features: {
    devInteractions: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: "draft-02" },
    introspection: { enabled: true, allowedPolicy: () => true },
    revocation: { enabled: true },
    registration: { enabled: true, issueRegistrationAccessToken: false },
    clientCredentials: { enabled: true },
    rpInitiatedLogout: { enabled: false },
    userinfo: { enabled: false },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_ctx, resource) => ({
        scope: "tools",
        audience: behaviour.audience ?? resource,
        accessTokenTTL: behaviour.ttl,
        accessTokenFormat: behaviour.format,
      }),
      defaultResource: () => undefined,
      useGrantedResource: () => false,
    },
  },
});

provider.on("grant.success", (ctx) =>
  say("granted", { grant: ctx.oidc.params.grant_type, client: ctx.oidc.client.clientId, resource: ctx.oidc.params.resource }),
);
provider.on("grant.error", (ctx, error) =>
  say("refused", { grant: ctx.oidc.params?.grant_type, error: error.error, detail: error.error_detail }),
);
provider.on("grant.revoked", () => say("reused"));
provider.on("registration_create.success", (ctx, client) => say("registered", { method: client.tokenEndpointAuthMethod }));
provider.on("server_error", (ctx, error) => say("server_error", { message: error.message }));

const answer = provider.callback();

const body = async (request) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
};

const server = http.createServer(async (request, response) => {
  const { pathname } = new URL(request.url, issuer);
  if (pathname === "/control") {
    Object.assign(behaviour, JSON.parse(await body(request)));
    response.end();
  } else if (pathname === "/forget") {
    const token = await provider.AccessToken.find(await body(request));
    await token.destroy();
    response.end();
  } else if (pathname === "/token/revocation") {
    response.on("finish", () => say("revoked", { status: response.statusCode }));
    answer(request, response);
  } else if (pathname === "/token" && behaviour.token) {
    const how = behaviour.token;
    say("token", { how });
    if (how === "down") {
      response.writeHead(503, { "retry-after": "1" }).end("down");
    } else if (how === "busy") {
      response.writeHead(429, { "retry-after": "120" }).end("busy");
    } else if (how === "moved") {
      response.writeHead(302, { location: "/login" }).end();
    } else if (how === "forbidden") {
      response.writeHead(403, { "content-type": "text/html" }).end("<p>firewall</p>");
    } else if (how === "passing") {
      response.writeHead(400, { "content-type": "application/json" });
      response.end('{"error": "temporarily_unavailable"}');
    } else if (how === "stranger") {
      response.writeHead(401, { "content-type": "application/json" });
      response.end('{"error": "invalid_client"}');
    } else if (how === "stale") {
      // Not one of OAuth's codes for a token endpoint, but some servers'.
      response.writeHead(401, { "content-type": "application/json" });
      response.end('{"error": "invalid_token"}');
    } else if (how === "silent") {
      await body(request);
    } else if (how === "huge") {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(`{"access_token": "${"a".repeat(4 << 20)}"}`);
    } else if (how === "html") {
      response.writeHead(200, { "content-type": "text/html" }).end("<p>proxy page</p>");
    } else if (how === "echo") {
      // What was sent, in an error: a code, a refresh token, a verifier.
      response.writeHead(400, { "content-type": "application/json" });
      response.end(JSON.stringify({ error: "invalid_grant", error_description: (await body(request)).replaceAll('"', "'") }));
    } else if (how === "lost") {
      // It is done, and nobody is told.
      response.end = () => request.socket.destroy();
      answer(request, response);
    } else if (how === "failed") {
      // It is done, and a gateway says that it isn't.
      const end = response.end.bind(response);
      response.end = () => {
        for (const name of response.getHeaderNames()) response.removeHeader(name);
        response.statusCode = 504;
        end("failed");
      };
      answer(request, response);
    }
  } else {
    answer(request, response);
  }
});

server.listen(Number(port), "127.0.0.1", () => process.stdout.write("ready\n"));
