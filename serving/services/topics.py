"""Creating, deleting and listing topics (F133-F135)."""

from __future__ import annotations

from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import OctavoError
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.services.views import TopicViews
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_admin import TopicAdmin
from octavo.serving.topic_changes import Alteration, TopicChanges


class TopicService:
    """The requests about topics as a whole."""

    def __init__(
        self,
        topic_admin: TopicAdmin,
        changes: TopicChanges,
        views: TopicViews,
        store_answers: StoreAnswers,
    ) -> None:
        self._topic_admin = topic_admin
        self._changes = changes
        self._views = views
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "CreateTopic": unary(pb.CreateTopicRequest, self.create_topic),
            "DeleteTopic": unary(pb.DeleteTopicRequest, self.delete_topic),
            "AlterTopic": unary(pb.AlterTopicRequest, self.alter_topic),
            "ListTopics": unary(pb.ListTopicsRequest, self.list_topics),
        }

    async def create_topic(
        self, request: pb.CreateTopicRequest, _caller: Caller
    ) -> pb.CreateTopicReply:
        """F133."""
        try:
            topic = await self._topic_admin.create(
                request.name, request.partitions, dict(request.config), request.creation_token
            )
        except OctavoError as error:
            return pb.CreateTopicReply(error=to_wire(error))
        return pb.CreateTopicReply(topic=self._views.of(topic))

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, _caller: Caller
    ) -> pb.DeleteTopicReply:
        """F134."""
        try:
            await self._topic_admin.delete(request.name, request.topic_id)
        except OctavoError as error:
            return pb.DeleteTopicReply(error=to_wire(error))
        return pb.DeleteTopicReply()

    async def alter_topic(
        self, request: pb.AlterTopicRequest, _caller: Caller
    ) -> pb.AlterTopicReply:
        """Change settings, add partitions or decommission them (F016, F027, P7)."""
        try:
            topic, warning = await self._changes.alter(
                request.name,
                request.topic_id,
                Alteration(
                    dict(request.config), request.unset, request.partitions, request.decommission
                ),
            )
        except OctavoError as error:
            return pb.AlterTopicReply(error=to_wire(error))
        return pb.AlterTopicReply(topic=self._views.of(topic, with_effective=True), warning=warning)

    async def list_topics(
        self, request: pb.ListTopicsRequest, _caller: Caller
    ) -> pb.ListTopicsReply:
        """F135."""
        found, more = await self._during(
            self._topic_admin.list(
                include_internal=request.include_internal, after=request.after, limit=request.limit
            )
        )
        return self._views.page(found, more=more, shares=request.shares)
