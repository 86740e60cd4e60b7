// The official Node client against the gateway: every check's result as one JSON line, so that each becomes a test of its own.
//
// One process for all checks: starting Node and loading the client takes longer than the checks do.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const { OpenAI, toFile } = createRequire(`${process.env.E2E_NODE_TOOLS}/`)('openai')
const client = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY })

const messages = [{ role: 'user', content: 'say some words' }]
const plain = { model: 'tiny', messages, max_tokens: 12, temperature: 0 }
const tool = {
  type: 'function',
  function: {
    name: 'now',
    parameters: { type: 'object', properties: { city: { type: 'string', maxLength: 8 } }, required: ['city'] },
  },
}

async function collect(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return chunks
}

async function refusal(promise) {
  return promise.then(
    () => assert.fail('no error was raised'),
    (error) => error,
  )
}

const checks = {
  async 'a plain chat is answered'() {
    const answer = await client.chat.completions.create(plain)
    assert.equal(answer.model, 'tiny')
    assert.equal(answer.choices[0].finish_reason, 'length')
    assert.equal(answer.usage.completion_tokens, 12)
  },

  async 'a stream says the same text under one id'() {
    const whole = await client.chat.completions.create(plain)
    const chunks = await collect(await client.chat.completions.create({ ...plain, stream: true }))
    assert.equal(chunks.map((c) => c.choices[0]?.delta?.content ?? '').join(''), whole.choices[0].message.content)
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1)
    assert.ok(chunks.every((c) => c.usage == null && c.choices.length === 1))
  },

  async 'include_usage adds one last chunk'() {
    const asked = { ...plain, stream: true, stream_options: { include_usage: true } }
    const chunks = await collect(await client.chat.completions.create(asked))
    assert.deepEqual(chunks.at(-1).choices, [])
    assert.equal(chunks.at(-1).usage.completion_tokens, 12)
    assert.ok(chunks.slice(0, -1).every((c) => c.usage === null))
  },

  async 'the stream helper gives the final answer'() {
    const runner = client.chat.completions.stream({ ...plain, model: 'talker', max_tokens: 400 })
    let text = ''
    runner.on('content', (delta) => (text += delta))
    const final = await runner.finalChatCompletion()
    assert.equal(final.choices[0].message.content, text)
    assert.equal(final.choices[0].finish_reason, 'stop')
  },

  async 'streamed tool calls add up'() {
    const asked = { ...plain, model: 'caller', max_tokens: 300, tools: [tool], tool_choice: 'required' }
    const whole = await client.chat.completions.create(asked)
    const final = await client.chat.completions.stream(asked).finalChatCompletion()
    const calls = (answer) => answer.choices[0].message.tool_calls.map((c) => [c.function.name, c.function.arguments])
    assert.ok(calls(whole).length >= 1)
    assert.deepEqual(calls(final), calls(whole))
  },

  async 'json mode gives json for the schema'() {
    const schema = { type: 'object', properties: { fraud: { type: 'boolean' } }, required: ['fraud'], additionalProperties: false }
    const answer = await client.chat.completions.parse({
      ...plain, max_tokens: 200, response_format: { type: 'json_schema', json_schema: { name: 'verdict', strict: true, schema } },
    })
    assert.equal(typeof answer.choices[0].message.parsed.fraud, 'boolean')
  },

  async 'text completions work plain and streamed'() {
    const asked = { model: 'tiny', prompt: 'the', max_tokens: 8, temperature: 0 }
    const whole = await client.completions.create(asked)
    const chunks = await collect(await client.completions.create({ ...asked, stream: true }))
    assert.equal(chunks.map((c) => c.choices[0]?.text ?? '').join(''), whole.choices[0].text)
  },

  async 'embeddings come as floats'() {
    const answer = await client.embeddings.create({ model: 'tiny', input: ['one', 'two'] })
    assert.equal(answer.data.length, 2)
    assert.equal(answer.data[0].embedding.length, 64)
    assert.ok(answer.data[0].embedding.every(Number.isFinite))
  },

  async 'a response is created and streamed'() {
    const asked = { model: 'tiny', input: 'say some words', max_output_tokens: 8, temperature: 0 }
    const whole = await client.responses.create(asked)
    const events = await collect(await client.responses.create({ ...asked, stream: true }))
    const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('')
    assert.equal(text, whole.output_text)
  },

  async 'the responses stream helper gives the final response'() {
    const asked = { model: 'tiny', input: 'say some words', max_output_tokens: 8, temperature: 0 }
    const final = await client.responses.stream(asked).finalResponse()
    assert.ok(final.output_text.length > 0)
  },

  async 'models are listed and retrieved'() {
    const listed = await collect(client.models.list())
    assert.ok(listed.some((m) => m.id === 'tiny'))
    assert.equal((await client.models.retrieve('tiny')).id, 'tiny')
  },

  async 'errors are typed and are not tried again'() {
    const missing = await refusal(client.chat.completions.create({ ...plain, model: 'nobody' }))
    assert.ok(missing instanceof OpenAI.NotFoundError)
    assert.equal(missing.code, 'model_not_found')
    assert.equal(missing.param, 'model')
    const long = await refusal(
      client.chat.completions.create({ ...plain, messages: [{ role: 'user', content: 'word '.repeat(6000) }] }),
    )
    assert.ok(long instanceof OpenAI.BadRequestError)
    assert.equal(long.code, 'context_length_exceeded')
    const stranger = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: 'sk-wrong' })
    const refused = await refusal(stranger.chat.completions.create(plain))
    assert.ok(refused instanceof OpenAI.AuthenticationError)
    assert.equal(refused.code, 'invalid_api_key')
  },

  async 'an abort ends the stream and the next request is served'() {
    const stream = await client.chat.completions.create({ ...plain, max_tokens: 3000, stream: true })
    let seen = 0
    for await (const chunk of stream) if ((seen += chunk.choices.length) >= 5) stream.controller.abort()
    assert.ok(seen >= 5 && seen < 3000)
    assert.equal((await client.chat.completions.create(plain)).usage.completion_tokens, 12)
  },

  async 'an abort while the answer is awaited is an abort error'() {
    const gone = new AbortController()
    const waiting = client.chat.completions.create({ ...plain, max_tokens: 3000 }, { signal: gone.signal })
    setTimeout(() => gone.abort(), 50)
    assert.ok((await refusal(waiting)) instanceof OpenAI.APIUserAbortError)
  },

  async 'a file goes in and comes back, and a batch is made of it'() {
    const content = '{"custom_id":"a"}\n'
    // The content goes before the fields that say what it is for.
    const asked = { file: await toFile(Buffer.from(content), 'naïve.jsonl'), purpose: 'batch' }
    const file = await client.files.create({ ...asked, expires_after: { anchor: 'created_at', seconds: 3600 } })
    assert.equal(file.filename, 'naïve.jsonl')
    assert.equal(file.bytes, content.length)
    assert.equal(file.expires_at - file.created_at, 3600)
    assert.equal(await (await client.files.content(file.id)).text(), content)
    const listed = []
    for await (const one of client.files.list({ limit: 1 })) listed.push(one.id)
    assert.ok(listed.includes(file.id))
    const described = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const batch = await client.batches.create({ ...described, metadata: { from: 'node' } })
    assert.equal(batch.status, 'validating')
    assert.equal((await client.batches.retrieve(batch.id)).metadata.from, 'node')
    assert.equal((await client.batches.list({ limit: 1 })).data[0].id, batch.id)
    const wrong = await refusal(client.batches.create({ ...described, endpoint: '/v1/moderations' }))
    assert.ok(wrong instanceof OpenAI.BadRequestError)
    assert.equal(wrong.param, 'endpoint')
    assert.equal((await client.files.delete(file.id)).deleted, true)
  },
}

for (const [name, check] of Object.entries(checks)) {
  const problem = await check().then(() => null, (error) => String(error?.stack ?? error))
  console.log(JSON.stringify({ name, problem }))
}
