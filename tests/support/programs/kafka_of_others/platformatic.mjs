// A producer, a consumer group and an administrator of @platformatic/kafka: `node platformatic.mjs HOST:PORT`. Prints one
// line of JSON.
import { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const bootstrapBrokers = [process.argv[2]]
const topic = 'of-platformatic'
const groupId = 'platformatic'
const COUNT = 1000
const said = {}

const admin = new Admin({ clientId: 'admin', bootstrapBrokers })
await admin.createTopics({ topics: [topic], partitions: 3, replicas: 1 })

const producer = new Producer({ clientId: 'producer', bootstrapBrokers, serializers: stringSerializers, idempotent: true })
for (let first = 0; first < COUNT; first += 50) {
  const messages = Array.from({ length: 50 }, (_, at) => ({ topic, key: `${at % 7}`, value: `${first + at}`, headers: { h: '1' } }))
  await producer.send({ messages })
}

const consumer = new Consumer({ clientId: 'consumer', groupId, bootstrapBrokers, deserializers: stringDeserializers })
const stream = await consumer.consume({ topics: [topic], autocommit: true, mode: MessagesStreamModes.EARLIEST })
const got = new Set()
let received = 0
for await (const message of stream) {
  received += 1
  got.add(message.value)
  if (got.size === COUNT) break
}
said.received = received
said.got = got.size
said.groups = [...(await admin.listGroups()).keys()]
said.state = [...(await admin.describeGroups({ groups: [groupId] })).values()].map((group) => group.state)
await stream.close().catch(() => {})
await consumer.close()
await admin.deleteTopics({ topics: [topic] })
await producer.close()
await admin.close()
console.log(JSON.stringify(said))
